//! The names that people give to columns, by what the columns are used for. Names decide where the values leave it open.

/// For each role its usual names, the most usual first.
const NAMES: [(&str, &[&str]); 8] = [
    (
        "source",
        &[
            "source",
            "src",
            "instruction",
            "question",
            "prompt",
            "input",
            "document",
            "article",
            "ingredients",
            "query",
            "text",
        ],
    ),
    (
        "target",
        &[
            "target",
            "output",
            "tgt",
            "answer",
            "response",
            "completion",
            "summary",
            "translation",
            "reply",
            "directions",
        ],
    ),
    (
        "text",
        &[
            "text",
            "sentence",
            "sentence1",
            "premise",
            "question1",
            "caption",
            "content",
            "review",
            "comment",
            "body",
            "message",
            "description",
            "title",
        ],
    ),
    ("text_pair", &["text_pair", "sentence2", "hypothesis", "question2"]),
    (
        "label",
        &[
            "label",
            "labels",
            "class",
            "category",
            "sentiment",
            "target",
            "intent",
            "topic",
            "score",
            "rating",
            "stars",
            "grade",
            "points",
            "price",
            "y",
        ],
    ),
    ("image", &["image", "image_path", "img", "picture", "photo", "path", "file", "filename", "file_name"]),
    ("time", &["time", "timestamp", "datetime", "date"]),
    ("id", &["id", "uuid", "guid", "index", "idx", "key", "row", "nr", "no", "number"]),
];

/// The place of `name` among the usual names of a role: smaller is more usual.
pub fn rank(role: &str, name: &str) -> Option<usize> {
    let (_, known) = NAMES.iter().find(|(known, _)| *known == role)?;
    known.iter().position(|known| name.trim().eq_ignore_ascii_case(known))
}

/// Whether a column is called what rows are numbered with: `id`, `review_id`, `ID`.
pub fn is_id(name: &str) -> bool {
    let last = name.trim().rsplit(['_', '-', ' ', '.']).next().unwrap_or(name);
    rank("id", name).is_some() || ["id", "uuid", "guid", "idx"].iter().any(|known| last.eq_ignore_ascii_case(known))
}

/// Whether whole numbers from 1 of a column with this name are how much of something there is, and not the numbers of classes.
pub fn is_amount(name: &str) -> bool {
    ["score", "rating", "stars", "grade", "points", "price"].iter().any(|known| name.trim().eq_ignore_ascii_case(known))
}
