//! Which files of a repository a path of a pipeline means.

/// Whether `path` is more than the name of one file or folder.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?'])
}

/// Whether `path` matches: `*` is any text without a slash, `?` one letter of it, `**` any text.
pub fn matches(pattern: &str, path: &str) -> bool {
    let (mut letters, mut rest) = (pattern.chars(), path.chars());
    loop {
        let before = letters.clone();
        match letters.next() {
            None => return rest.next().is_none(),
            Some('*') => {
                let deep = before.as_str().starts_with("**");
                let after = before.as_str().trim_start_matches('*');
                // `a/**/b` is also a/b.
                let after_slash = after.strip_prefix('/').filter(|_| deep);
                if after_slash.is_some_and(|after| matches(after, rest.as_str())) {
                    return true;
                }
                return star(after, rest.as_str(), deep);
            }
            Some('?') => match rest.next() {
                Some(letter) if letter != '/' => {}
                _ => return false,
            },
            Some(letter) => {
                if rest.next() != Some(letter) {
                    return false;
                }
            }
        }
    }
}

fn star(after: &str, path: &str, deep: bool) -> bool {
    let end = if deep { path.len() } else { path.find('/').unwrap_or(path.len()) };
    let mut places = path.char_indices().map(|(at, _)| at).chain([path.len()]).take_while(|at| *at <= end);
    places.any(|at| matches(after, &path[at..]))
}

/// Whether `path` lies in `folder` itself, not in a folder of it. The empty folder is the whole repository.
pub fn is_in(folder: &str, path: &str) -> bool {
    let inside = match folder {
        "" => Some(path),
        _ => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
    };
    inside.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("data/train-*.parquet", "data/train-00000-of-00002.parquet", true),
            ("data/train-*.parquet", "data/eval-00000.parquet", false),
            ("data/train-*.parquet", "data/train-a/b.parquet", false),
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "a/b.jsonl", false),
            ("**.jsonl", "a/b.jsonl", true),
            ("a/**/b.csv", "a/b.csv", true),
            ("a/**/b.csv", "a/x/y/b.csv", true),
            ("a/**/b.csv", "a/xb.csv", false),
            ("part-?.csv", "part-1.csv", true),
            ("part-?.csv", "part-12.csv", false),
            ("part?x.csv", "part/x.csv", false),
            ("*", "", true),
            ("é*", "étude.csv", true),
        ];
        for (pattern, path, want) in cases {
            assert_eq!(matches(pattern, path), want, "{pattern} {path}");
        }
    }

    #[test]
    fn folders_without_theirs() {
        let cases = [
            ("data", "data/a.csv", true),
            ("data", "data/b/a.csv", false),
            ("data", "database/a.csv", false),
            ("", "a.csv", true),
            ("", "b/a.csv", false),
        ];
        for (folder, path, want) in cases {
            assert_eq!(is_in(folder, path), want, "{folder} {path}");
        }
    }
}
