//! JSON lines as a table, for people who open it in a spreadsheet.

use std::io::{self, BufRead, Seek, SeekFrom, Write};

use serde_json::{Map, Value};

/// Writes JSON lines as CSV: a column for each name, in the order in which they come. An object has a column for each of its own names,
/// and a list is written as JSON.
pub fn write_csv(mut lines: impl BufRead + Seek, separator: u8, out: impl Write) -> io::Result<()> {
    let mut names: Vec<String> = Vec::new();
    each_row(&mut lines, |row| {
        for (name, _) in &row {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Ok(())
    })?;
    lines.seek(SeekFrom::Start(0))?;
    let mut writer = csv::WriterBuilder::new().delimiter(separator).from_writer(out);
    writer.write_record(&names)?;
    each_row(&mut lines, |row| {
        let cell = |name: &String| row.iter().find(|(own, _)| own == name).map_or("", |(_, text)| text.as_str());
        Ok(writer.write_record(names.iter().map(cell))?)
    })?;
    writer.flush()
}

/// The cells of each row, by their names.
fn each_row(lines: &mut impl BufRead, mut each: impl FnMut(Vec<(String, String)>) -> io::Result<()>) -> io::Result<()> {
    for line in lines.lines() {
        let row: Map<String, Value> = serde_json::from_str(&line?)?;
        let mut cells = Vec::with_capacity(row.len());
        for (name, value) in row {
            match value {
                Value::Object(members) => {
                    cells.extend(members.into_iter().map(|(member, value)| (format!("{name}.{member}"), text(value))));
                }
                value => cells.push((name, text(value))),
            }
        }
        each(cells)?;
    }
    Ok(())
}

fn text(value: Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_for_each_name() {
        let lines = "{\"row\":0,\"label\":\"a, b\",\"scores\":{\"x\":0.5,\"y\":null},\"spans\":[1]}\n{\"row\":1,\"expected\":true}\n";
        let mut out = Vec::new();
        write_csv(io::Cursor::new(lines), b',', &mut out).unwrap();
        let want = "row,label,scores.x,scores.y,spans,expected\n0,\"a, b\",0.5,,[1],\n1,,,,,true\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
