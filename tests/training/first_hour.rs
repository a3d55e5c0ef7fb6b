//! The first hour of a new user: a file or a folder of their own, `pipe init --yes`, `pipe check`, `pipe run`, and nothing edited. The
//! model that comes out of it must have learned something.

use image::{Rgb, RgbImage};
use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::events;

pub fn tests(suite: &mut Suite) {
    for set in SETS {
        let (name, test) = (format!("first_hour::{}", set.name), move || first_hour(set));
        if THOROUGH.contains(&set.name) {
            suite.thorough(&name, Needs::Nothing, test);
        } else {
            suite.test(&name, Needs::Nothing, test);
        }
    }
}

/// Those that train like another set from a file of another format, and those that take longest.
const THOROUGH: &[&str] = &[
    "semicolons_and_a_byte_order_mark",
    "tabs_and_uneven_classes",
    "labels_with_space_and_without_a_value",
    "conversations",
    "a_text_from_a_text_under_odd_names",
    "two_texts_and_a_label",
    "pictures_with_captions",
    "numbers_as_target",
    "dates",
    "stars_with_nulls",
    "sensors_with_missing_numbers",
    "a_table_of_many_numbers",
    "a_table_with_missing_values",
    "a_table_with_a_number_to_predict",
    "a_table_of_sensors",
    "plain_text",
];

/// Data as somebody brings it.
struct DataSet {
    name: &'static str,
    /// Of tests/fixtures/first_hour, or a folder that is drawn.
    data: &'static str,
    /// What the draft must say.
    draft: &'static [&'static str],
    beats: Baseline,
}

/// What a model must be clearly better than.
enum Baseline {
    /// The share of the largest class.
    LargestClass,
    /// The variance of the numbers in the last column.
    Mean,
    /// The same, times this.
    Variance(f64),
    /// The loss of the first evaluation, when an eighth or less of the training is over, times this.
    FirstEvaluation(f64),
    /// The loss of a model that takes every text for every picture, times this.
    Chance(f64),
    /// This share of the texts that are written as they should be.
    ExactMatch(f64),
}

const SETS: &[DataSet] = &[
    DataSet {
        name: "text_and_label_under_odd_names",
        data: "tickets.csv",
        draft: &[
            "arch: bert",
            "fields: {text: what_they_wrote, label: team}",
            "3 classes",
            "not used: ref (an id), received (time)",
        ],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "semicolons_and_a_byte_order_mark",
        data: "restaurants.csv",
        draft: &["arch: bert", "fields: {text: Kommentar, label: Urteil}", "not used: Personen"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "tabs_and_uneven_classes",
        data: "messages.tsv",
        draft: &["arch: bert", "fields: {text: msg, label: verdict}", "class_weights: balanced"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "two_texts_and_a_label",
        data: "news.csv",
        draft: &["arch: bert", "fields: {text: headline, text_pair: body, label: section}"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "numbers_as_target",
        data: "wines.csv",
        draft: &["arch: bert", "fields: {text: tasting, label: score}", "num_labels: 1", "best: eval.mse"],
        beats: Baseline::Mean,
    },
    DataSet {
        name: "labels_with_space_and_without_a_value",
        data: "dishes.jsonl",
        draft: &[
            "arch: bert",
            "fields: {text: how_to, label: dish}",
            "3 classes",
            "6 rows without one",
            "skip_bad: true",
        ],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_text_from_a_text_under_odd_names",
        data: "commands.jsonl",
        draft: &["arch: t5", "fields: {source: colloquial, target: shell}", "max_source: 32"],
        beats: Baseline::FirstEvaluation(0.5),
    },
    DataSet {
        name: "conversations",
        data: "orders.jsonl",
        draft: &["arch: t5", "fields: {messages: messages}"],
        beats: Baseline::FirstEvaluation(0.5),
    },
    DataSet {
        name: "pictures_with_captions",
        data: "shapes/",
        draft: &["arch: clip", "train: shapes/pictures.jsonl", "fields: {image: image, text: text}"],
        beats: Baseline::Chance(0.4),
    },
    DataSet {
        name: "pictures_in_folders_of_classes",
        data: "views/",
        draft: &["arch: resnet", "train: views", "fields: {image: image, label: label}", "augment: crop", "3 classes"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_table_of_sensors",
        data: "pump.csv",
        draft: &[
            "arch: hybrid-cnn-lstm",
            "fields: {label: condition, time: stamp}",
            "input_features: 3",
            "num_classes: 3",
        ],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "dates",
        data: "dates.tsv",
        draft: &["arch: t5", "fields: {source: source, target: target}", "max_target: 32"],
        beats: Baseline::ExactMatch(0.95),
    },
    DataSet {
        name: "stars_with_nulls",
        data: "stars.jsonl",
        draft: &["arch: bert", "fields: {text: text, label: stars}", "num_labels: 1", "skip_bad: true", "asin (an id)"],
        beats: Baseline::FirstEvaluation(0.5),
    },
    DataSet {
        name: "sensors_with_missing_numbers",
        data: "sensors.csv",
        draft: &["arch: hybrid-cnn-lstm", "fields: {label: state, time: ts}", "missing numbers", "input_features: 2"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_table_with_a_class",
        data: "iris.csv",
        draft: &[
            "arch: tabular",
            "fields: {label: species}",
            "features: sepal_length, sepal_width",
            "best: eval.macro_f1",
        ],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_table_of_many_numbers",
        data: "cultivars.csv",
        draft: &["arch: tabular", "fields: {label: cultivar}", "3 classes"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_table_with_missing_values",
        data: "customers.csv",
        draft: &["arch: tabular", "fields: {label: status, ignore: nr}", "not used: nr"],
        beats: Baseline::LargestClass,
    },
    DataSet {
        name: "a_table_with_a_number_to_predict",
        data: "diabetes.csv",
        draft: &["arch: tabular", "fields: {label: progression}", "num_labels: 1", "best: eval.mse"],
        beats: Baseline::Variance(0.75),
    },
    DataSet { name: "plain_text", data: "diary.txt", draft: &["arch: mu-sota"], beats: Baseline::FirstEvaluation(0.6) },
];

fn first_hour(set: &DataSet) {
    let folder = Folder::new();
    match set.data {
        "shapes/" => shapes(&folder),
        "views/" => views(&folder),
        "dates.tsv" => drop(folder.write("dates.tsv", dates())),
        "stars.jsonl" => drop(folder.write("stars.jsonl", stars())),
        "sensors.csv" => drop(folder.write("sensors.csv", sensors())),
        name => {
            let file = repository().join("tests/fixtures/first_hour").join(name);
            folder.write(name, std::fs::read(file).unwrap());
        }
    }
    folder.pipe(&["init", "mine.yaml", "--yes", "--data", set.data.trim_end_matches('/')]).exits(0);
    let draft = folder.read("mine.yaml");
    set.draft.iter().for_each(|wanted| assert!(draft.contains(wanted), "no {wanted:?} in\n{draft}"));
    let checked = folder.pipe(&["check", "mine.yaml", "--json"]).exits(0).json();
    assert_eq!(checked["warnings"], Value::Array(Vec::new()), "{draft}");
    folder.pipe(&["run", "mine.yaml", "--engine", "process"]).exits(0);
    let events = events(&folder.run_folder());
    learned(set, &folder, &checked, &events);
    if set.draft.contains(&"arch: tabular") {
        predict_the_same_file(set, &folder);
    }
}

/// Every row, those that were trained on among them.
fn predict_the_same_file(set: &DataSet, folder: &Folder) {
    let table = folder.read(set.data);
    let predicted = folder.pipe(&["predict", "latest", "--data", set.data, "--engine", "process"]).exits(0);
    let lines: Vec<Value> = predicted.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), table.lines().count() - 1);
    if let Baseline::Variance(share) = set.beats {
        let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
        let squares = lines.iter().map(|line| (number(line, "value") - number(line, "expected")).powi(2));
        assert!(squares.sum::<f64>() / (lines.len() as f64) < share * variance(&table), "{predicted}");
    } else {
        let right = lines.iter().filter(|line| line["label"] == line["expected"]).count();
        assert!(right as f64 > 0.9 * lines.len() as f64, "{right} of {}", lines.len());
    }
}

/// The model of a run is that of its best evaluation.
fn learned(set: &DataSet, folder: &Folder, checked: &Value, events: &[Value]) {
    let evaluations: Vec<&Value> = events.iter().filter(|event| event["type"] == "eval").collect();
    assert!((5..=11).contains(&evaluations.len()), "{} evaluations", evaluations.len());
    let values = |name: &str| -> Vec<f64> { evaluations.iter().filter_map(|event| event[name].as_f64()).collect() };
    let least = |name: &str| values(name).into_iter().fold(f64::INFINITY, f64::min);
    match set.beats {
        Baseline::LargestClass => {
            let rows = |class: &Value| class["rows"].as_f64().unwrap();
            let classes = checked["data"]["eval"]["classes"].as_array().unwrap();
            let largest = classes.iter().map(rows).fold(0.0, f64::max) / classes.iter().map(rows).sum::<f64>();
            let best = values("macro_f1");
            let (at, _) = best.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            let accuracy = values("accuracy")[at];
            // Half of what a model that always says the largest class has wrong.
            assert!(accuracy > largest + (1.0 - largest) / 2.0, "{accuracy} where {largest} is of one class: {best:?}");
        }
        Baseline::Mean | Baseline::Variance(_) => {
            let variance = variance(&folder.read(set.data));
            let share = if let Baseline::Variance(share) = set.beats { share } else { 0.5 };
            assert!(least("mse") < share * variance, "{:?} with a variance of {variance}", values("mse"));
        }
        Baseline::FirstEvaluation(share) => {
            let losses = values("loss");
            assert!(least("loss") < share * losses[0], "{losses:?}");
        }
        Baseline::ExactMatch(share) => {
            let best = values("exact_match").into_iter().fold(0.0, f64::max);
            assert!(best > share, "{:?}", values("exact_match"));
        }
        Baseline::Chance(share) => {
            let chance = values("samples")[0].ln();
            assert!(least("loss") < share * chance, "{:?} where chance is {chance}", values("loss"));
        }
    }
}

/// Dates in words and in figures, 5,000 of 80 years.
fn dates() -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let row = |number: usize| {
        // Steps that share no factor with the numbers of days, months and years pass all of them.
        let (day, month, year) = (number * 11 % 28 + 1, number * 7919 / 28 % 12, 1950 + number * 7919 / 336 % 80);
        format!("{} {day}, {year}\t{year}-{:02}-{day:02}\n", MONTHS[month], month + 1)
    };
    format!("source\ttarget\n{}", (0..5000).map(row).collect::<String>())
}

/// Reviews with one to five stars, of which every fiftieth has no text.
fn stars() -> String {
    const WORDS: [[&str; 3]; 5] = [
        ["awful", "broken", "useless"],
        ["poor", "flimsy", "noisy"],
        ["average", "okay", "usual"],
        ["good", "solid", "handy"],
        ["superb", "lovely", "perfect"],
    ];
    let row = |number: usize| {
        let stars = if number.is_multiple_of(3) { number * 7 / 3 % 5 } else { 4 };
        let thing = ["phone", "lamp", "chair", "mug"][number * 5 % 4];
        let text = format!("the {thing} is {} and {}", WORDS[stars][number % 3], WORDS[stars][number / 3 % 3]);
        let text = if number % 50 == 7 { Value::Null } else { Value::from(text) };
        let asin = format!("B{:07}", number * 37 % 499);
        format!("{}\n", serde_json::json!({"asin": asin, "text": text, "stars": stars + 1}))
    };
    (0..600).map(row).collect()
}

/// Two sensors in three states, with numbers missing in several ways of writing.
fn sensors() -> String {
    let row = |number: usize| {
        let state = number / 40 % 3;
        let noise = |step: usize| (number * step % 17) as f64 / 10.0;
        let cell = |value: f64, at: usize| match number % 31 == at {
            true => ["NaN", "", "null", "NA"][number / 31 % 4].to_owned(),
            false => format!("{value:.2}"),
        };
        let (day, hour, minute) = (number / 96 + 1, number % 96 / 4, number % 4 * 15);
        let (heat, shake) = (cell(20.0 + 8.0 * state as f64 + noise(7), 3), cell(state as f64 + noise(5), 12));
        format!("2025-01-{day:02}T{hour:02}:{minute:02},{heat},{shake},{}\n", ["ok", "warm", "hot"][state])
    };
    format!("ts,heat,shake,state\n{}", (0..1200).map(row).collect::<String>())
}

/// Of the numbers in the last column.
fn variance(table: &str) -> f64 {
    let last = |line: &str| line.rsplit(',').next().unwrap().parse::<f64>().unwrap();
    let numbers: Vec<f64> = table.lines().skip(1).map(last).collect();
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64
}

const SIDE: u32 = 48;
const COLOURS: [(&str, [u8; 3]); 4] =
    [("red", [210, 40, 40]), ("green", [40, 170, 60]), ("blue", [40, 70, 200]), ("yellow", [230, 210, 50])];

fn draw(folder: &Folder, name: &str, colour: impl Fn(i64, i64) -> [u8; 3]) {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_fn(SIDE, SIDE, |x, y| Rgb(colour(i64::from(x), i64::from(y)))).save(path).unwrap();
}

/// Shapes on paper, each with its caption in a file beside it.
fn shapes(folder: &Folder) {
    for number in 0..160_i64 {
        let (name, colour) = COLOURS[number as usize % COLOURS.len()];
        let (is_round, is_dark) = (number / 4 % 2 == 0, number / 8 % 2 == 0);
        let (left, top, size) = (14 + number * 7 % 18, 14 + number * 11 % 18, 8 + number % 6);
        let paper = if is_dark { [30, 30, 30] } else { [240, 238, 230] };
        draw(folder, &format!("shapes/{number:03}.png"), |x, y| {
            let (across, down) = (x - left, y - top);
            let is_inside = match is_round {
                true => across * across + down * down <= size * size,
                false => across.abs() <= size && down.abs() <= size,
            };
            if is_inside { colour } else { paper }
        });
        let (shape, paper) = (if is_round { "circle" } else { "square" }, if is_dark { "black" } else { "white" });
        folder.write(&format!("shapes/{number:03}.txt"), format!("A {name} {shape} on {paper} paper\n"));
    }
}

/// Views of three kinds, in a folder each.
fn views(folder: &Folder) {
    for number in 0..150_i64 {
        let (class, [red, green, blue]) =
            [("sunset", [220, 120, 60]), ("forest", [40, 110, 50]), ("open_sea", [50, 110, 190])][number as usize % 3];
        draw(folder, &format!("views/{class}/{number:03}.jpg"), |x, y| {
            let shade = (y * 2 + (x * (number % 5 + 1) + number * 13) % 23 + number % 17) - 40;
            [red, green, blue].map(|part: i64| (part + shade).clamp(0, 255) as u8)
        });
    }
}
