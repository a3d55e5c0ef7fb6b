#!/usr/bin/env python3
"""Data as strangers bring it, from the file to predictions: `pipe init --yes`, `check`, `run`, `predict`, and nothing edited.

    tests/strangers.py --bin target/debug               all kinds
    tests/strangers.py --bin target/debug dates iris    only these

For each kind the script makes (or takes from a package of PyPI) a file to train on and one that the training never sees, predicts the
second, and compares the predictions with the answers itself: they must be clearly better than the best answer that ignores the input.
Needs the packages of tests/strangers.txt: `make strangers` fetches them."""

import argparse
import csv
import gzip
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def write_table(path, rows, delimiter=",", encoding="utf-8", ending="\n"):
    with open(path, "w", newline="", encoding=encoding) as file:
        table = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter, lineterminator=ending)
        table.writeheader()
        table.writerows(rows)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def cut(rows, seed=1):
    """The rows to train on, and the fifth that the training never sees."""
    rows = list(rows)
    random.Random(seed).shuffle(rows)
    return rows[len(rows) // 5:], rows[:len(rows) // 5]


TOPICS = {
    "Billing": ["invoice", "refund", "charged twice", "credit card", "payment", "receipt"],
    "Technical": ["crashes", "error 500", "does not load", "login page", "black screen", "freezes"],
    "Shipping": ["parcel", "delivery", "tracking number", "courier", "arrived broken", "late"],
    "Account": ["password", "delete my profile", "change my e-mail", "username", "two-factor", "locked out"],
}
OPENINGS = ["Hi,", "Hello,", "Dear team,", "", "Good morning,", "Please help:"]
MIDDLES = ["I have a question about the {}", "there is a problem with {}", "since Monday: {}", "again {} and nobody answers",
           "can you look at this, {}", "my colleague says it is the {}"]
ENDINGS = ["Thanks", "Regards", "Please hurry", "Order {}", "", "Best, Kim"]


def ticket(chance, topic):
    words = chance.choice(TOPICS[topic])
    middle = chance.choice(MIDDLES).format(words)
    return f"{chance.choice(OPENINGS)} {middle}. {chance.choice(ENDINGS).format(chance.randrange(9999))}".strip()


def tickets_rows(count, seed):
    chance = random.Random(seed)
    topics = chance.choices(list(TOPICS), [4, 3, 2, 1], k=count)
    return [{"id": number, "message": ticket(chance, topic), "team": topic} for number, topic in enumerate(topics)]


@kind
def tickets(folder):
    """Semicolons, a byte order mark, CRLF, blanks around labels, rows without one."""
    rows, unseen = cut(tickets_rows(900, 1))
    for number, row in enumerate(rows):
        row["team"] = "" if number % 60 == 7 else f" {row['team']} " if number % 11 == 0 else row["team"]
    write_table(folder / "tickets.csv", rows, ";", "utf-8-sig", "\r\n")
    write_table(folder / "unseen/tickets.csv", unseen, ";", "utf-8-sig", "\r\n")
    return Task("tickets.csv", Classes("team"))


@kind
def stars(folder):
    """Ratings from 1 to 5, an id that looks like a text, texts that are null."""
    chance = random.Random(2)
    words = {1: "awful broke refund waste terrible", 2: "poor weak disappointing cheap", 3: "okay average fine so-so",
             4: "good solid nice works", 5: "excellent perfect love amazing best"}
    rows = []
    for number in range(1200):
        rating = chance.choices([1, 2, 3, 4, 5], [1, 1, 1, 2, 5])[0]
        text = " ".join(chance.choices(words[rating].split(), k=4) + chance.choices("the item came on time and I use it daily".split(), k=6))
        rows.append({"asin": f"B00{number:05d}X{chance.randrange(99)}", "text": None if number % 50 == 3 else text, "stars": rating})
    rows, unseen = cut(rows)
    write_lines(folder / "reviews.jsonl", rows)
    write_lines(folder / "unseen/reviews.jsonl", [row for row in unseen if row["text"]])
    return Task("reviews.jsonl", Number("stars"))


@kind
def sensors(folder):
    """Twelve columns by time, with NaN and empty cells, and a state to predict."""
    chance = random.Random(3)
    rows = []
    for minute in range(4000):
        state = minute // 50 * 7919 % 3
        row = {"timestamp": f"2024-03-{1 + minute // 1440:02d} {minute // 60 % 24:02d}:{minute % 60:02d}:00"}
        for column in range(12):
            level = [0.0, 1.5, -1.0][(state + column) % 3] if column < 6 else 0.0
            value = level + math.sin(minute / (3 + state)) * (column % 2) + chance.gauss(0, 0.3)
            row[f"s{column}"] = "NaN" if chance.random() < 0.01 else "" if chance.random() < 0.01 else f"{value:.3f}"
        row["state"] = ["idle", "running", "fault"][state]
        rows.append(row)
    write_table(folder / "sensors.csv", rows[:3200])
    write_table(folder / "unseen/sensors.csv", rows[3200:])
    return Task("sensors.csv", Classes(None))


def draw(path, shape, colour, chance, size=64):
    from PIL import Image, ImageDraw
    picture = Image.new("RGB", (size + chance.randrange(20), size), tuple(chance.randrange(200, 256) for _ in range(3)))
    pen, left, top, width = ImageDraw.Draw(picture), chance.randrange(4, 20), chance.randrange(4, 20), chance.randrange(26, 38)
    box = [left, top, left + width, top + width]
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    elif shape == "triangle":
        pen.polygon([(left, top + width), (left + width, top + width), (left + width // 2, top)], fill=colour)
    else:
        pen.rectangle([left, top + width // 3, left + width, top + width // 2], fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


SHAPES = ["circle", "square", "triangle", "bar"]
COLOURS = ["red", "green", "blue", "orange", "purple", "black"]


@kind
def captions(folder):
    """Pictures with captions, some of them broken."""
    chance = random.Random(4)
    rows = []
    for number in range(400):
        shape, colour = chance.choice(SHAPES), chance.choice(COLOURS)
        name = f"{number:03d}.png"
        draw(folder / f"pictures/{name}", shape, colour, chance)
        rows.append({"file": name, "caption": f"a {colour} {shape}"})
    for row in rows[10:350:40]:
        (folder / "pictures" / row["file"]).write_bytes(b"\x89PNG broken")
    write_table(folder / "pictures/captions.csv", rows)
    return Task("pictures", Best("text_recall_1", lambda samples: 1 / samples))


@kind
def class_folders(folder):
    """Pictures in folders by class."""
    chance = random.Random(5)
    for number in range(500):
        place = "unseen/shapes" if number % 5 == 0 else "shapes"
        shape = SHAPES[number // 5 % 4]
        draw(folder / place / shape / f"{number:03d}.png", shape, chance.choice(COLOURS), chance)
    return Task("shapes", Classes(None))


@kind
def dates(folder):
    """Dates in words, and as ISO writes them."""
    months = "January February March April May June July August September October November December".split()
    chance = random.Random(6)
    rows = []
    for _ in range(5000):
        year, month, day = chance.randrange(1950, 2030), chance.randrange(12), chance.randrange(1, 29)
        rows.append({"written": f"{months[month]} {day}, {year}", "iso": f"{year}-{month + 1:02d}-{day:02d}"})
    rows, unseen = cut(rows)
    write_table(folder / "dates.tsv", rows, "\t")
    write_table(folder / "unseen/dates.tsv", unseen[:300], "\t")
    return Task("dates.tsv", Exact("iso", least=0.95))


@kind
def nested_parquet(folder):
    """Parquet with columns that are lists and structures."""
    import pyarrow
    import pyarrow.parquet
    rows = [{"message": row["message"], "team": row["team"], "meta": {"lang": "en", "length": len(row["message"])},
             "tags": ["a"] * (row["id"] % 3)} for row in tickets_rows(900, 7)]
    for name, part in zip(("rows.parquet", "unseen/rows.parquet"), cut(rows)):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), folder / name)
    return Task("rows.parquet", Classes("team"))


@kind
def several_labels(folder):
    """Several labels a text, with a bar between them."""
    chance = random.Random(8)
    rows = []
    for _ in range(1500):
        topics = chance.sample(list(TOPICS), chance.choices([1, 2], [2, 1])[0])
        urgent = chance.random() < 0.3
        text = " ".join(ticket(chance, topic) for topic in topics) + (" This is urgent, today please!" if urgent else "")
        rows.append({"text": text, "labels": "|".join([topic.lower() for topic in topics] + ["urgent"] * urgent)})
    rows, unseen = cut(rows)
    write_table(folder / "tickets.csv", rows)
    write_table(folder / "unseen/tickets.csv", unseen)
    return Task("tickets.csv", Several("labels", "|"))


@kind
def novel(folder):
    """Plain text."""
    chance = random.Random(9)
    names = ["Anna", "the captain", "a stranger", "Mr. Pell", "the old woman", "her brother"]
    verbs = ["walked to", "looked at", "remembered", "spoke of", "waited near", "turned away from"]
    things = ["the harbour", "the empty house", "the letter", "the river", "the garden gate", "the long road"]
    when = ["In the morning", "That night", "After the rain", "Years later", "Before dawn", "Without a word"]
    sentence = lambda: f"{chance.choice(when)} {chance.choice(names)} {chance.choice(verbs)} {chance.choice(things)}."
    text = "\n\n".join(" ".join(sentence() for _ in range(chance.randrange(3, 9))) for _ in range(700))
    (folder / "novel.txt").write_text(text)
    return Task("novel.txt", Perplexity(text))


@kind
def conll(folder):
    """A tag for each token."""
    chance = random.Random(10)
    people = [f"{a} {b}" for a in "Anna Peter Maria Tom Ines Omar Kim Lea".split() for b in "Weber Novak Rossi Silva Chen Diaz Olsen".split()]
    places = "Berlin Paris Oslo Lima Rome Tokyo Cairo Vienna Lyon Madrid Quito Delhi".split() + ["New York", "Hong Kong"]
    firms = ["Acme", "Globex", "Initech", "Umbrella Group", "Stark Works", "Wayne Bank"]
    forms = ["{P} lives in {L} .", "{P} works for {O} in {L} .", "Yesterday {O} opened an office in {L} .", "The head of {O} , {P} , said no .",
             "{P} and {P} met near {L} .", "Nothing happened in {L} today .", "It rained all day ."]

    def sentence():
        lines = []
        for word in chance.choice(forms).split():
            tag, names = {"{P}": ("PER", people), "{L}": ("LOC", places), "{O}": ("ORG", firms)}.get(word, (None, None))
            parts = chance.choice(names).split() if tag else [word]
            lines += [f"{part} {('B-' if at == 0 else 'I-') + tag if tag else 'O'}" for at, part in enumerate(parts)]
        return "\n".join(lines)

    for name, count in (("news.conll", 1200), ("unseen/news.conll", 200)):
        (folder / name).write_text("-DOCSTART- O\n\n" + "\n\n".join(sentence() for _ in range(count)) + "\n")
    return Task("news.conll", Entities())


@kind
def numbered_tags(folder):
    """A number for each token, as the Hugging Face data sets have them, without names."""
    chance = random.Random(21)
    people, places = "Anna Peter Maria Tom Ines Omar Kim Lea".split(), "Berlin Paris Oslo Lima Rome Tokyo Cairo Vienna".split()
    forms = ["{P} lives in {L} .", "Yesterday {P} met {P} in {L} .", "It rained all day .", "Nothing happened in {L} today ."]

    def sentence():
        pairs = [{"{P}": (chance.choice(people), 1), "{L}": (chance.choice(places), 5)}.get(word, (word, 0))
                 for word in chance.choice(forms).split()]
        return {"tokens": [word for word, _ in pairs], "ner_tags": [tag for _, tag in pairs]}

    for name, count in (("news.jsonl", 800), ("unseen/news.jsonl", 200)):
        write_lines(folder / name, [sentence() for _ in range(count)])
    return Task("news.jsonl", Tokens("ner_tags"))


@kind
def price_list(folder):
    """A title above the names, an index without one, words among the prices, and rows with too many cells and too few."""
    chance = random.Random(22)
    towns = {"Ulm": 0, "Bonn": 50000, "Kiel": 20000}

    def row(number):
        size, rooms, town = chance.randint(30, 200), chance.randint(1, 6), chance.choice(list(towns))
        price = round(size * 3000 + rooms * 10000 + towns[town] + chance.gauss(0, 8000))
        return [number, size, rooms, town, "EUR", price]

    rows = [row(number) for number in range(500)]
    for number in range(7, 500, 50):
        rows[number][-1] = "on request"
    rows[20] += ["more"]
    rows[30] = rows[30][:2]
    head = ["", "size", "rooms", "town", "currency", "price"]
    with open(folder / "flats.csv", "w", newline="") as file:
        table = csv.writer(file, delimiter=";", lineterminator="\n")
        table.writerows([["Flats for sale 2024"], [], head, *rows])
    write_table(folder / "unseen" / "flats.csv", [dict(zip(head, row(number))) for number in range(100)], delimiter=";")
    return Task("flats.csv", Number("price"))


@kind
def sentences_without_names(folder):
    """The first line is a row: its sentence is no name of a column."""
    chance = random.Random(23)
    words = {"positive": "great lovely fresh tasty warm".split(), "negative": "cold stale awful slow dull".split()}

    def row():
        label = chance.choice(list(words))
        first, second = chance.choices(words[label], k=2)
        return {"column1": f"The {chance.choice(['soup', 'cake', 'fish'])} was {first} and {second}", "column2": label}

    (folder / "reviews.tsv").write_text("".join(f"{one['column1']}\t{one['column2']}\n" for one in (row() for _ in range(400))))
    write_table(folder / "unseen" / "reviews.tsv", [row() for _ in range(100)], delimiter="\t")
    return Task("reviews.tsv", Classes("column2"))


@kind
def score(folder):
    """A text and a number."""
    chance = random.Random(11)
    good, bad = "fresh ripe elegant bright balanced".split(), "flat thin sour dull corked".split()
    rows = []
    for _ in range(1000):
        share = chance.random()
        words = [chance.choice(good if chance.random() < share else bad) for _ in range(8)]
        rows.append({"note": " ".join(words), "score": round(sum(word in good for word in words) / 2 + chance.gauss(0, 0.1), 2)})
    rows, unseen = cut(rows)
    write_table(folder / "wine.csv", rows)
    write_table(folder / "unseen/wine.csv", unseen)
    return Task("wine.csv", Number("score"))


@kind
def chat(folder):
    """Conversations."""
    chance = random.Random(12)
    answers = {"Billing": "I have sent you the invoice again.", "Technical": "Please restart and try again.",
               "Shipping": "Your parcel is on its way.", "Account": "Use the link to reset your password."}
    rows = []
    for _ in range(900):
        topic = chance.choice(list(TOPICS))
        turns = [("user", "hello"), ("assistant", "How can I help?")] if chance.random() < 0.5 else []
        turns += [("user", ticket(chance, topic)), ("assistant", answers[topic])]
        rows.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    rows, unseen = cut(rows)
    write_lines(folder / "chats.jsonl", rows)
    write_lines(folder / "unseen/chats.jsonl", unseen)
    return Task("chats.jsonl", Exact(lambda row: row["messages"][-1]["content"]))


@kind
def excel(folder):
    """A workbook."""
    import openpyxl
    for name, part in zip(("tickets.xlsx", "unseen/tickets.xlsx"), cut(tickets_rows(800, 13))):
        book = openpyxl.Workbook()
        book.active.append(["id", "message", "team"])
        for row in part:
            book.active.append([row["id"], row["message"], row["team"]])
        book.save(folder / name)
    return Task("tickets.xlsx", Classes(None))


@kind
def json_array(folder):
    """One JSON array of rows."""
    for name, part in zip(("tickets.json", "unseen/tickets.json"), cut(tickets_rows(800, 14))):
        (folder / name).write_text(json.dumps(part, indent=1))
    return Task("tickets.json", Classes("team"))


@kind
def windows_1252(folder):
    """A CSV in another encoding."""
    rows = [{**row, "message": row["message"].replace("problem", "Störung – “größer”").replace("question", "Frage à propos")}
            for row in tickets_rows(800, 15)]
    for name, part in zip(("tickets.csv", "unseen/tickets.csv"), cut(rows)):
        write_table(folder / name, part, ";", "cp1252")
    return Task("tickets.csv", Classes("team"))


@kind
def alpaca(folder):
    """Alpaca's three columns."""
    chance = random.Random(16)
    rows = []
    for _ in range(1500):
        word = "".join(chance.choice("abcde") for _ in range(chance.randrange(3, 6)))
        how = chance.choice(["Spell it in capitals.", "Repeat it."])
        rows.append({"instruction": how, "input": word, "output": word.upper() if "capitals" in how else word})
    rows, unseen = cut(rows)
    (folder / "alpaca.json").write_text(json.dumps(rows))
    (folder / "unseen/alpaca.json").write_text(json.dumps(unseen))
    return Task("alpaca.json", Exact("output", least=0.5))


@kind
def table(folder):
    """Numbers and categories, with missing values."""
    chance = random.Random(17)
    rows = []
    for _ in range(2000):
        plan, city = chance.choice(["free", "basic", "pro"]), chance.choice(["Rome", "Oslo", "Lima", "Pune"])
        age, visits = chance.randrange(18, 80), chance.expovariate(0.2)
        odds = 1.5 * (plan == "pro") - 1.0 * (plan == "free") + 0.25 * visits - 0.03 * age + 0.8 * (city == "Oslo")
        stays = "yes" if odds + chance.gauss(0, 0.4) > 0 else "no"
        rows.append({"customer": f"c{chance.randrange(10**6):06d}", "plan": plan, "city": "" if chance.random() < 0.04 else city,
                     "age": "" if chance.random() < 0.05 else age, "visits": "NA" if chance.random() < 0.05 else f"{visits:.2f}", "stays": stays})
    rows, unseen = cut(rows)
    write_table(folder / "customers.csv", rows)
    write_table(folder / "unseen/customers.csv", unseen)
    return Task("customers.csv", Classes("stays"))


def packaged(name, package):
    for place in sys.path:
        path = Path(place) / package / name
        if path.exists():
            return path
    sys.exit(f"{package}/{name} is not here: make strangers")


@kind
def iris(folder):
    """scikit-learn's iris.csv as it lies in the package: its first line is no header of names."""
    lines = packaged("datasets/data/iris.csv", "sklearn").read_text().splitlines()
    rows, unseen = cut(lines[1:])
    (folder / "iris.csv").write_text("\n".join(lines[:1] + rows) + "\n")
    (folder / "unseen/iris.csv").write_text("\n".join(lines[:1] + unseen) + "\n")
    return Task("iris.csv", Classes(None))


@kind
def diabetes(folder):
    """scikit-learn's diabetes: ten numbers, and one to predict."""
    numbers = gzip.decompress(packaged("datasets/data/diabetes_data_raw.csv.gz", "sklearn").read_bytes()).decode().splitlines()
    target = gzip.decompress(packaged("datasets/data/diabetes_target.csv.gz", "sklearn").read_bytes()).decode().split()
    names = "age sex bmi bp s1 s2 s3 s4 s5 s6".split()
    rows = [dict(zip(names, line.split()), progression=float(value)) for line, value in zip(numbers, target)]
    rows, unseen = cut(rows)
    write_table(folder / "diabetes.csv", rows)
    write_table(folder / "unseen/diabetes.csv", unseen)
    return Task("diabetes.csv", Number("progression", share=0.8))


@kind
def digits(folder):
    """scikit-learn's digits, as pictures in folders by class."""
    from PIL import Image
    text = gzip.decompress(packaged("datasets/data/digits.csv.gz", "sklearn").read_bytes()).decode()
    for number, line in enumerate(text.splitlines()):
        *pixels, digit = [int(float(cell)) for cell in line.split(",")]
        picture = Image.new("L", (8, 8))
        picture.putdata([pixel * 15 for pixel in pixels])
        path = folder / ("unseen/digits" if number % 5 == 0 else "digits") / f"digit {digit}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    return Task("digits", Classes(None))


@kind
def weather(folder):
    """Seattle's weather by day: hard to predict, so the result has to say how it compares with guessing."""
    lines = packaged("_data/seattle-weather.csv", "vega_datasets").read_text().splitlines()
    (folder / "weather.csv").write_text("\n".join(lines[:1200]) + "\n")
    (folder / "unseen/weather.csv").write_text("\n".join([lines[0]] + lines[1200:]) + "\n")
    return Task("weather.csv", Told())


class Task:
    def __init__(self, data, measure):
        self.data, self.measure = data, measure


def clearly(value, baseline, best=1.0):
    """At least half of what is between the baseline and the best is gained."""
    return (value - baseline) / (best - baseline) >= 0.5


class Classes:
    """Accuracy, beside the share of the largest class. Without a column the answers are those that `pipe predict` read."""

    def __init__(self, column):
        self.column = column

    def judge(self, folder, task, predicted, result):
        wanted = self.wanted(folder, task, predicted)
        answers = [row["label"] for row in predicted]
        right = sum(str(a).strip() == str(b).strip() for a, b in zip(answers, wanted)) / len(wanted)
        baseline = Counter(wanted).most_common(1)[0][1] / len(wanted)
        return f"accuracy {right:.3f} (largest class {baseline:.3f})", clearly(right, baseline) and len(answers) == len(wanted)

    def wanted(self, folder, task, predicted):
        if self.column is None:
            return [row["expected"] for row in predicted]
        return [row[self.column] for row in unseen_rows(folder / "unseen" / task.data)]


class Number:
    """Mean squared error, beside the variance."""

    def __init__(self, column, share=0.5):
        self.column, self.share = column, share

    def judge(self, folder, task, predicted, result):
        wanted = [float(row[self.column]) for row in unseen_rows(folder / "unseen" / task.data)]
        # Ratings may have become classes.
        answers = [float(row["value"] if "value" in row else row["label"]) for row in predicted]
        mean = sum(wanted) / len(wanted)
        variance = sum((value - mean) ** 2 for value in wanted) / len(wanted)
        error = sum((a - b) ** 2 for a, b in zip(answers, wanted)) / len(wanted)
        return f"squared error {error:.3f} (variance {variance:.3f})", error < self.share * variance


class Exact:
    """Texts that are right to the letter, beside the most frequent one."""

    def __init__(self, column, least=0.9):
        self.column, self.least = column, least

    def judge(self, folder, task, predicted, result):
        column = self.column if callable(self.column) else lambda row: row[self.column]
        wanted = [column(row) for row in unseen_rows(folder / "unseen" / task.data)]
        right = sum(row["text"] == text for row, text in zip(predicted, wanted)) / len(wanted)
        baseline = Counter(wanted).most_common(1)[0][1] / len(wanted)
        return f"exact match {right:.3f} (most frequent text {baseline:.3f})", right >= self.least


class Several:
    """Micro F1, beside that of the labels that half of the rows have, or the most frequent one."""

    def __init__(self, column, separator):
        self.column, self.separator = column, separator

    def judge(self, folder, task, predicted, result):
        wanted = [set(row[self.column].split(self.separator)) for row in unseen_rows(folder / "unseen" / task.data)]
        answers = [set(row["labels"]) for row in predicted]
        most = {Counter(label for labels in wanted for label in labels).most_common(1)[0][0]}
        value, baseline = micro_f1(answers, wanted), micro_f1([most] * len(wanted), wanted)
        return f"micro F1 {value:.3f} (most frequent label {baseline:.3f})", clearly(value, baseline)


class Entities:
    """F1 of the entities as the run reports it, beside 0: nothing is an entity."""

    def judge(self, folder, task, predicted, result):
        value = result["entity_f1"]
        spans = sum(len(row["spans"]) for row in predicted)
        return f"entity F1 {value:.3f} ({spans} entities predicted)", value > 0.8 and spans > 100


class Tokens:
    """Tokens whose label is right, beside the most frequent label."""

    def __init__(self, column):
        self.column = column

    def judge(self, folder, task, predicted, result):
        wanted = [str(tag) for row in unseen_rows(folder / "unseen" / task.data) for tag in row[self.column]]
        answers = [tag for row in predicted for tag in row["tags"]]
        right = sum(answer == tag for answer, tag in zip(answers, wanted, strict=True)) / len(wanted)
        baseline = Counter(wanted).most_common(1)[0][1] / len(wanted)
        return f"tokens right {right:.3f} (most frequent label {baseline:.3f})", clearly(right, baseline)


class Perplexity:
    def __init__(self, text):
        words = Counter(text.split())
        total = sum(words.values())
        self.unigram = math.exp(-sum(count / total * math.log(count / total) for count in words.values()))

    def judge(self, folder, task, predicted, result):
        return f"perplexity {result['perplexity']:.2f} (words alone {self.unigram:.1f})", result["perplexity"] < self.unigram / 2


class Best:
    """A metric of the evaluation, beside chance."""

    def __init__(self, metric, chance):
        self.metric, self.chance = metric, chance

    def judge(self, folder, task, predicted, result):
        value, chance = result[self.metric], self.chance(result["samples"])
        return f"{self.metric} {value:.3f} (chance {chance:.3f})", value > 5 * chance


class Told:
    """The end of the run names the baseline, whatever the result is."""

    def judge(self, folder, task, predicted, result):
        text = (folder / "run.txt").read_text()
        line = next((line for line in text.splitlines() if "would be" in line or "learned nothing" in line), None)
        return f"says: {line}", line is not None


def micro_f1(answers, wanted):
    right = sum(len(a & b) for a, b in zip(answers, wanted))
    return 2 * right / max(1, sum(map(len, answers)) + sum(map(len, wanted)))


def unseen_rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".parquet":
        import pyarrow.parquet
        return pyarrow.parquet.read_table(path).to_pylist()
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("cp1252")
    return list(csv.DictReader(io.StringIO(text), delimiter=max(";,\t", key=text.split("\n", 1)[0].count)))


def pipe(folder, program, *args):
    environment = {**os.environ, "PIPE_RUNS": str(folder / "runs"), "PIPE_LEDGER": str(folder / "ledger"), "COLUMNS": "80"}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run([program, *args], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    with open(folder / f"{args[0]}.txt", "w") as file:
        file.write(ended.stdout + ended.stderr)
    if ended.returncode:
        raise RuntimeError(f"pipe {' '.join(args)}: exit {ended.returncode}\n{ended.stderr[-1500:]}")
    return ended.stdout


def first_hour(name, program, folder):
    began = time.time()
    (folder / "unseen").mkdir()
    task = KINDS[name](folder)
    pipe(folder, program, "init", "mine.yaml", "--yes", "--data", task.data)
    pipe(folder, program, "check", "mine.yaml")
    pipe(folder, program, "run", "mine.yaml", "--engine", "process")
    run = next((folder / "runs").iterdir())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    best = json.loads(pipe(folder, program, "show", "latest", "--json")).get("best") or {}
    evaluations = [event for event in events if event["type"] == "eval"]
    result = next((event for event in evaluations if event.get("step") == best.get("step")), evaluations[-1])
    predicted = []
    unseen = folder / "unseen" / task.data
    if unseen.exists():
        pipe(folder, program, "predict", "latest", "--data", str(unseen), "--out", "predicted.jsonl", "--engine", "process")
        predicted = [json.loads(line) for line in (folder / "predicted.jsonl").read_text().splitlines()]
    text, good = task.measure.judge(folder, task, predicted, result)
    return f"{text}, {time.time() - began:.0f} s", good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the folder of pipe and pipe-trainer")
    parser.add_argument("--keep", metavar="FOLDER", help="work here, and leave everything there")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    arguments = parser.parse_args()
    unknown = set(arguments.kinds) - set(KINDS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    program = str(Path(arguments.bin).resolve() / "pipe")
    failed = []
    for name in arguments.kinds or KINDS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(arguments.keep or temporary).resolve() / name
            folder.mkdir(parents=True)
            try:
                text, good = first_hour(name, program, folder)
            except Exception as error:
                text, good = f"{type(error).__name__}: {error}", False
        print(f"{'passed' if good else 'FAILED'} {name}: {text}", flush=True)
        failed += [] if good else [name]
    print(f"{len(arguments.kinds or KINDS) - len(failed)} of {len(arguments.kinds or KINDS)} are clearly above their baseline")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
