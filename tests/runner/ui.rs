//! `pipe ui` from outside: by requests, also such as no browser would send.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::harness::moto::Moto;
use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("ui::nobody_else_is_let_in", Needs::Nothing, nobody_else);
    suite.test("ui::plain_text_stays_on_this_machine", Needs::Nothing, plain_text);
    suite.test("ui::no_argument_has_the_token", Needs::Nothing, opened);
    suite.test("ui::a_hostile_folder_harms_its_own_row", Needs::Nothing, hostile);
    suite.test("ui::a_note_and_tags", Needs::Nothing, notes);
    suite.test("ui::the_machine", Needs::Nothing, machine);
    suite.test("ui::a_model_is_tried", Needs::Nothing, tried);
    suite.test("ui::another_folder", Needs::Nothing, another_folder);
    suite.test("ui::read_only_does_nothing", Needs::Nothing, read_only);
    suite.test("ui::a_study_and_its_trials", Needs::Nothing, study);
    suite.test("ui::a_run_is_started_once", Needs::Nothing, started);
    suite.test("ui::many_runs", Needs::Nothing, many_runs);
    suite.test("ui::the_copies_of_a_bucket", Needs::Moto, bucket);
}

/// A server, and its address.
pub struct Server {
    child: Child,
    pub address: String,
    pub host: String,
    pub base: String,
    cookie: String,
}

/// An answer of a server.
pub struct Got {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Server {
    pub fn start(folder: &Folder, more: &[&str]) -> Self {
        Self::from(folder.command(&[&["ui", "--listen", "127.0.0.1:0"], more].concat()))
    }

    fn from(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().to_owned();
        let (host, path) = address.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let base = format!("/{}", path.split_once('?').unwrap().0);
        let mut server = Self { child, host: host.to_owned(), base, address: address.clone(), cookie: String::new() };
        let welcome = server.get(&format!("/{path}"), &[]);
        assert_eq!(welcome.status, 200, "{}", welcome.head);
        let cookie = welcome.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        for part in ["HttpOnly", "SameSite=Strict", &format!("Path={}", server.base)] {
            assert!(cookie.contains(part), "{cookie}");
        }
        server.cookie = cookie.split(';').next().unwrap().to_owned();
        server
    }

    fn request(&self, text: &str) -> Got {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Got { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// A request with these headers alone.
    fn get(&self, path: &str, headers: &[&str]) -> Got {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let host =
            if headers.to_lowercase().contains("host:") { String::new() } else { format!("Host: {}\r\n", self.host) };
        self.request(&format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}\r\n"))
    }

    /// A page, for the one who has the cookie.
    pub fn page(&self, path: &str) -> Got {
        self.get(&format!("{}{path}", self.base), &[&format!("Cookie: {}", self.cookie)])
    }

    fn post(&self, path: &str, form: &str, headers: &[&str]) -> Got {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        self.request(&format!(
            "POST {}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nCookie: {}\r\n{headers}Content-Length: {}\r\n\r\n{form}",
            self.base,
            self.host,
            self.cookie,
            form.len()
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn nobody_else() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let id = folder.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    let server = Server::start(&folder, &[]);
    let (base, cookie) = (&server.base, format!("Cookie: {}", server.cookie));
    let own = server.page("");
    assert!(own.status == 200 && own.body.contains(&id), "{}", own.body);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "referrer-policy: same-origin",
        "x-frame-options: DENY",
    ] {
        assert!(own.head.contains(header), "{}", own.head);
    }
    assert!(!own.body.contains("<script>") && !own.body.contains("onclick"), "{}", own.body);
    let origin = format!("Origin: http://{}", server.host);
    let refused = [
        ("no cookie", server.get(base, &[])),
        ("a wrong token", server.get(&format!("{base}?token=0000"), &[])),
        ("the token of another folder", server.get("/0000/?token=0000", &[&cookie])),
        ("a wrong cookie", server.get(base, &["Cookie: pipe-ui=0000"])),
        ("another host", server.get(base, &["Host: evil.example", &cookie])),
        ("another origin", server.get(base, &[&cookie, "Origin: http://evil.example"])),
        ("a page of another server", server.get(&format!("{base}events"), &[&cookie, "Sec-Fetch-Site: same-site"])),
        ("the style without a cookie", server.get(&format!("{base}style.css"), &[])),
        ("a form of nowhere", server.post("act", &format!("do=remove&run={id}&form=1"), &[])),
        (
            "a form of another origin",
            server.post("act", &format!("do=remove&run={id}&form=1"), &["Origin: http://127.0.0.1:9"]),
        ),
    ];
    for (what, got) in refused {
        assert!(
            got.status == 403 && !got.body.contains(&id) && !got.head.contains("set-cookie"),
            "{what}: {}",
            got.head
        );
    }
    assert!(folder.run_folder().is_dir());
    // The same form twice is one act; the second time the run is gone.
    let form = format!("do=remove&run={id}&form=1");
    let first = server.post("act", &form, &[&origin]);
    assert_eq!(
        (first.status, server.post("act", &form, &[&origin]).head.contains("done/1")),
        (303, true),
        "{}",
        first.head
    );
    folder.wait_until("the run is removed", || server.page("done/1").body.contains("removed"));
    assert!(!server.page("").body.contains(&id));
    let large = server.post("act", &"x".repeat(66_000), &[&origin]);
    assert_eq!(large.status, 413, "{}", large.head);
}

fn plain_text() {
    let folder = Folder::new();
    folder.pipe(&["ui", "--listen", "0.0.0.0:0"]).exits(2).says("unencrypted").says("ssh -L");
    folder.pipe(&["ui", "--listen", "0.0.0.0:0", "--proxy", "http://pipe.example.org"]).exits(2).says("https://");
}

/// Other users see the arguments of the browser, and may not read the page that it opens.
fn opened() {
    let folder = Folder::new();
    let [browser, page, argument] = ["bin/xdg-open", "page", "argument"].map(|name| folder.path().join(name));
    folder.write("bin/xdg-open", "#!/bin/sh\ncp -p \"$1\" \"$PWD/page\"\nprintf %s \"$*\" > \"$PWD/argument\"\n");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = folder.command(&["ui", "--listen", "127.0.0.1:0", "--open"]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", browser.parent().unwrap().display()));
    let server = Server::from(command);
    folder
        .wait_until("the browser is open", || fs::read_to_string(&argument).is_ok_and(|text| text.ends_with(".html")));
    assert!(!fs::read_to_string(&argument).unwrap().contains("token"));
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&page).unwrap().contains(&format!("url={}\"", server.address)));
}

fn hostile() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let id = run.file_name().unwrap().to_string_lossy().into_owned();
    let runs = run.parent().unwrap();
    let bad = "<img src=x onerror=alert(1)>\"'&";
    let copy = |name: &str| {
        let copied = Command::new("cp").arg("-a").args([&run, &runs.join(name)]).status().unwrap();
        assert!(copied.success());
    };
    let edit = |name: &str, file: &str, change: &dyn Fn(String) -> String| {
        let path = runs.join(name).join(file);
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    };
    copy(bad);
    let engine = serde_json::to_string(bad).unwrap();
    edit(bad, "run.json", &|text| {
        let text = text.replace("\"process\"", &engine).replace("\"status\": \"finished\"", "\"status\": \"failed\"");
        text.replace("\"error\": null", "\"error\": \"<script>alert(2)</script>\"")
    });
    edit(bad, "events.jsonl", &|text| text.replace("\"cpu\"", &engine) + "\u{0}\u{1}{}\n[[[[\n");
    fs::write(runs.join(bad).join("attempts/01/log.txt"), format!("{bad}\u{1b}[2J\u{202e}</pre><script>\n")).unwrap();
    // A command would take its name for that of another run.
    copy("latest");
    edit("latest", "run.json", &|text| text.replace(&id, "latest"));
    fs::create_dir_all(runs.join("empty")).unwrap();
    fs::create_dir_all(runs.join("fifo")).unwrap();
    for file in ["run.json", "events.jsonl", "resolved.yaml"] {
        Command::new("mkfifo").arg(runs.join("fifo").join(file)).status().unwrap();
    }
    fs::write(runs.join("fifo/pipeline.yaml"), "x").unwrap();
    fs::create_dir_all(runs.join("huge")).unwrap();
    fs::File::create(runs.join("huge/run.json")).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir_all(runs.join("damaged")).unwrap();
    fs::write(runs.join("damaged/run.json"), "{").unwrap();
    std::os::unix::fs::symlink("/dev", runs.join("link")).unwrap();
    let server = Server::start(&folder, &[]);
    let list = server.page("");
    for text in [&id, "run.json is larger", "run.json is damaged", "&lt;img src=x", "&lt;script&gt;alert(2)"] {
        assert!(list.body.contains(text), "no {text:?} in\n{}", list.body);
    }
    let page = server.page("run/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%22%27%26");
    assert_eq!(page.status, 200, "{}", page.body);
    for page in [&list.body, &page.body] {
        for text in ["<img src=x", "<script>alert", "\u{1b}", "\u{202e}", "</pre><script>"] {
            assert!(!page.contains(text), "{text:?} is not escaped in\n{page}");
        }
    }
    // No command would find it by the name of its folder, or another run instead.
    assert!(page.body.contains("Its folder has another name") && !page.body.contains("act?do="), "{}", page.body);
    let latest = server.page("act?do=remove&run=latest");
    assert!(latest.status == 404 && latest.body.contains("begun last"), "{}", latest.body);
    for name in ["fifo", "huge", "damaged"] {
        assert_eq!(server.page(&format!("run/{name}")).status, 200, "{name}");
    }
    for path in
        ["run/..%2F..%2Fetc", "run/nope", "compare?run=nope&run=neither", "compare?run=1", "act?do=fly&run=x", "done/7"]
    {
        assert_eq!(server.page(path).status, 404, "{path}");
    }
    assert_eq!(server.page(&format!("run/{id}")).status, 200);
}

/// By the command and by the form; nothing of the record of the run changes.
fn notes() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let id = run.file_name().unwrap().to_string_lossy().into_owned();
    let record = |name: &str| fs::read(run.join(name)).unwrap();
    let before = ["run.json", "lock.json", "resolved.yaml", "events.jsonl"].map(record);
    let bad = "<img src=x>\n\u{1b}[2J & more";
    folder.pipe(&["note", "latest", bad, "--tag", "baseline,seed:1"]).exits(0).prints("tags     baseline, seed:1");
    folder.pipe(&["note", &id, "--tag", "a b"]).exits(2).says("letters, digits");
    folder.pipe(&["note", &id, &"x".repeat(2001)]).exits(2).says("2000 characters");
    let many: Vec<String> = (0..20).map(|tag| format!("t{tag}")).collect();
    folder.pipe(&["note", &id, "--tag", &many.join(",")]).exits(2).says("22 tags").says("--untag");
    folder.pipe(&["ls"]).exits(0).prints("tags: baseline, seed:1; <img src=x>");
    folder.pipe(&["ls", "--tag", "seed:1,baseline", "-q"]).exits(0).prints(&id);
    let none = folder.pipe(&["ls", "--tag", "other"]).exits(0).says("no run matches");
    assert!(!none.stdout.contains(&id), "{}", none.stdout);
    folder.pipe(&["show"]).exits(0).prints("note     <img src=x>\n         \\x1b[2J & more");
    assert_eq!(folder.show()["tags"], serde_json::json!(["baseline", "seed:1"]));
    let report = folder.pipe(&["report", "--out", "-"]).exits(0).stdout;
    assert!(report.contains("<li>seed:1</li>") && report.contains("&lt;img src=x&gt;"), "{report}");
    assert!(!report.contains("<img src=x"), "{report}");

    let server = Server::start(&folder, &[]);
    let list = server.page("?tag=seed%3A1").body;
    assert!(list.contains("&lt;img src=x&gt;") && !list.contains("<img src=x") && list.contains(&id), "{list}");
    let page = server.page(&format!("run/{id}")).body;
    let field =
        |name: &str| page.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap().split('"').next().unwrap();
    let form = |rest: &str| format!("run={id}&form={}&had={}&was={}&{rest}", field("form"), field("had"), field("was"));
    assert_eq!(field("had"), "baseline seed:1");
    let origin = format!("Origin: http://{}", server.host);
    let wrong = server.post("note", &form("note=x&tags=%3Cb%3E"), &[&origin]);
    assert!(wrong.status == 409 && wrong.body.contains("is no tag"), "{}", wrong.body);
    assert_eq!(server.post("note", &form("note=x"), &[]).status, 403);
    // Somebody adds a tag while the page is open; it stays.
    folder.pipe(&["note", &id, "--tag", "kept"]).exits(0);
    for _ in 0..2 {
        let got = server.post("note", &form("note=it%27s+--better&tags=best+baseline"), &[&origin]);
        assert!(got.status == 303 && got.head.contains("done/1"), "{}", got.head);
    }
    folder.wait_until("the note is saved", || server.page("done/1").body.contains("<h1>Done</h1>"));
    let done = server.page("done/1").body;
    let shown = format!("pipe note --tag=best --untag=seed:1 -- {id} &quot;it&#39;s --better&quot;");
    assert!(done.contains(&shown), "no {shown} in\n{done}");
    let notes = folder.pipe(&["note", &id, "--json"]).exits(0).json();
    assert_eq!(notes, serde_json::json!({ "note": "it's --better", "tags": ["baseline", "kept", "best"] }));
    let page = server.page(&format!("run/{id}")).body;
    assert!(page.contains("<li>kept</li>") && page.contains("it&#39;s --better</p>"), "{page}");
    assert!(before == ["run.json", "lock.json", "resolved.yaml", "events.jsonl"].map(record));
}

/// The cards with who uses them, the queue, and what fits; also where there is nothing of that.
fn machine() {
    let folder = job::on_card("card free", "train: {batch: 8}\n", "16384 4096 120\n1 12288\n\n16384 16384");
    let server = Server::start(&folder, &["--read-only"]);
    let empty = server.page("machine").body;
    for text in ["Card 0:", "12.0 GiB of 16.0 GiB in use", "(1, 12.0 GiB)", "capability 12.0", "lists no process"] {
        assert!(empty.contains(text), "no {text:?} in\n{empty}");
    }
    assert!(empty.contains("No run holds a card") && empty.contains("Nothing is known yet"), "{empty}");

    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"]).exits(0);
    let id = folder.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    let queue = folder.path().join("queue");
    let hold = |number: u32, text: &str| {
        let path = queue.join(format!("gpu-0-{number:08}"));
        fs::write(&path, text).unwrap();
        let file = fs::File::open(path).unwrap();
        file.lock().unwrap();
        file
    };
    let _held = [hold(1, &id), hold(2, "waiting-one"), hold(3, "<img src=x>")];
    let page = server.page("machine").body;
    let link = format!("<a href=\"run/{}\">{id}</a>", id.replace('-', "%2D"));
    for text in [
        format!("<li>{link}: has the card</li><li>waiting-one: waits for {link}</li>"),
        format!("<li>(without a name): waits for {link} and 1 more</li>"),
        "batch 8 fits".to_owned(),
    ] {
        assert!(page.contains(&text), "no {text:?} in\n{page}");
    }
    // A script asks for the parts that change by themselves.
    let cookie = format!("Cookie: {}", server.cookie);
    let parts = server.get(&format!("{}machine", server.base), &[&cookie, "X-Pipe-Parts: cards,queue"]).body;
    assert!(parts.starts_with("<div id=\"part-cards\"") && !parts.contains("What fits"), "{parts}");

    let folder = job::folder("fit 5", "");
    let page = Server::start(&folder, &[]).page("machine").body;
    let has_card = fs::exists("/dev/nvidiactl").unwrap_or(false);
    assert!(has_card || page.contains("no NVIDIA card"), "{page}");
    assert!(page.contains("<dt>processors</dt>") && page.contains("<dt>memory in use</dt>"), "{page}");
}

/// One prediction at a time, by `pipe predict`, which can be cancelled; nothing stays.
fn tried() {
    let folder = job::folder("learn", "evaluate: {every: 1}\nsave: {best: eval.loss}\n");
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let folder = folder.env("TMPDIR", temporary.display());
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "data.eval=train.jsonl"]).exits(0);
    let id = folder.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    let server = Server::start(&folder, &[]);
    let run = server.page(&format!("run/{id}")).body;
    let path = format!("predict?run={}", id.replace('-', "%2D"));
    assert!(run.contains(&format!("href=\"{path}\"")), "{run}");
    let form = server.page(&path).body;
    assert!(form.contains("source <textarea name=\"f0\"") && !form.contains("target"), "{form}");
    let ask = |source: &str, headers: &[&str]| {
        let field = |name: &str, value: &str| {
            format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let body = [field("run", &id), field("form", "1"), field("f0", source), "--x--\r\n".to_owned()].concat();
        server.post("predict", &body, &[headers, &["Content-Type: multipart/form-data; boundary=x"]].concat())
    };
    let origin = format!("Origin: http://{}", server.host);
    assert_eq!(ask("x", &[]).status, 403);
    let first = ask("<i>soup</i>", &[&origin]);
    assert!(first.status == 303 && first.head.contains("prediction/1"), "{}\n{}", first.head, first.body);
    assert!(ask("<i>soup</i>", &[&origin]).head.contains("prediction/1"));
    folder.wait_until("the answer", || server.page("prediction/1").body.contains("<h2>Answer</h2>"));
    let page = server.page("prediction/1").body;
    for text in [
        "<p class=\"said\">&lt;I&gt;SOUP&lt;/I&gt;</p>",
        "pipe predict --data rows.jsonl",
        "&lt;i&gt;soup&lt;/i&gt;</textarea>",
    ] {
        assert!(page.contains(text), "no {text:?} in\n{page}");
    }
    assert!(ask("bad", &[&origin]).head.contains("prediction/2"));
    folder.wait_until("the error", || server.page("prediction/2").body.contains("No answer"));
    let page = server.page("prediction/2").body;
    assert!(page.contains("rows.jsonl line 1: &lt;b&gt;no such dish") && !page.contains("temporary"), "{page}");
    assert!(ask("sleep", &[&origin]).head.contains("prediction/3"));
    let busy = ask("soup", &[&origin]);
    assert!(busy.status == 409 && busy.body.contains("Another prediction"), "{}", busy.body);
    let cancelled = server.post("cancel", "number=3", &[&origin]);
    assert!(cancelled.status == 303 && cancelled.head.contains("prediction/3"), "{}", cancelled.head);
    folder.wait_until("the end", || server.page("prediction/3").body.contains("It was cancelled."));
    assert_eq!(fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), [""; 0]);
    let wrong = server.post("predict", "a=b", &[&origin]);
    assert!(wrong.status == 409 && wrong.body.contains("not complete"), "{}", wrong.body);
    assert_eq!(ask("", &[&origin]).status, 409);
    let closed = Server::start(&folder, &["--read-only"]);
    assert!(!closed.page(&format!("run/{id}")).body.contains("predict?run"));
    assert_eq!(closed.page(&path).status, 404);
}

/// Runs of another folder are listed under its name, and acts are carried out there.
fn another_folder() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let id = run.file_name().unwrap().to_string_lossy().into_owned();
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    assert!(Command::new("cp").arg("-a").args([&run, &shared]).status().unwrap().success());
    folder.pipe(&["ui", "--listen", "127.0.0.1:0", "nowhere"]).exits(1).says("nowhere");
    let server = Server::start(&folder, &["shared"]);
    let list = server.page("").body;
    let address = format!("run/shared%2F{}", id.replace('-', "%2D"));
    for text in
        [format!("row-{id}\""), format!("row-shared/{id}\""), address.clone(), "href=\"./?q=shared%2F\"".to_owned()]
    {
        assert!(list.contains(&text), "no {text:?} in\n{list}");
    }
    assert_eq!(server.page("?q=shared/").body.matches("<tr id=").count(), 1);
    let page = server.page(&address).body;
    assert!(page.contains(&format!("PIPE_RUNS={} pipe show {id}", shared.display())), "{page}");
    let origin = format!("Origin: http://{}", server.host);
    let got = server.post("note", &format!("run=shared%2F{id}&form=1&tags=there"), &[&origin]);
    assert_eq!(got.status, 303, "{}", got.body);
    folder.wait_until("the note is saved", || server.page("done/1").body.contains("<h1>Done</h1>"));
    assert!(fs::read_to_string(shared.join(&id).join("notes.json")).unwrap().contains("there"));
    assert!(!run.join("notes.json").exists());
    // A change there is seen too.
    fs::remove_dir_all(shared.join(&id)).unwrap();
    assert_eq!(server.page(&address).status, 404);
    assert_eq!(server.page("run/shared%2F..%2Fshared").status, 404);
}

/// A run that goes on elsewhere grows here; it can be taken over, and nothing else is done to it.
fn bucket() {
    let moto = Moto::start();
    let folder = moto.known_to(job::folder("long 400 30 64", "save: {to: s3://data/runs}\n"));
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    let here = folder.path().join("here");
    let own = |more: &[&str]| {
        let mut command = folder.command(&[&["ui", "--listen", "127.0.0.1:0"], more].concat());
        command.env("PIPE_RUNS", &here).env("TMPDIR", folder.path());
        command
    };
    let refused = own(&["s3://nowhere/runs"]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("s3://nowhere"));
    let server = Server::from(own(&["s3://data/runs"]));
    let row = |text: &str| server.page("").body.contains(text);
    folder.wait_until("the run in the bucket", || row("row-runs/job-") && row("running"));
    let id = folder.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    let address = format!("run/runs%2F{}", id.replace('-', "%2D"));
    let page = server.page(&address).body;
    assert!(page.contains(&format!("pipe resume s3://data/runs/{id}")) && !page.contains("act?do="), "{page}");
    let origin = format!("Origin: http://{}", server.host);
    let stop = server.post("act", &format!("run=runs%2F{id}&do=stop&form=1"), &[&origin]);
    assert!(stop.body.contains("This is a copy from a bucket"), "{} {}", stop.status, stop.body);
    running.signal("TERM");
    running.end().exits(130);
    folder.wait_until("its end in the bucket", || row("stopped") && !row("running"));
    let events = |runs: &std::path::Path| fs::read(runs.join(&id).join("events.jsonl")).unwrap_or_default();
    let copies = fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("pipe-ui-"));
    let copies = fs::read_dir(copies.unwrap().path()).unwrap().flatten().next().unwrap().path().join("runs");
    assert!(!events(&copies).is_empty() && events(&copies) == events(&folder.path().join("runs")));
    assert!(!copies.join(&id).join("checkpoints").exists() && !here.join(&id).exists());
}

fn read_only() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let id = folder.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    let server = Server::start(&folder, &["--read-only"]);
    let page = server.page(&format!("run/{id}")).body;
    assert!(page.contains("read only") && !page.contains("act?do=") && !page.contains("href=\"start\""), "{page}");
    assert!(!page.contains("name=\"note\""), "{page}");
    let origin = format!("Origin: http://{}", server.host);
    for (path, form) in [
        ("act", format!("do=remove&run={id}&form=1")),
        ("note", format!("note=x&run={id}&form=1")),
        ("start", "step=run&file=job.yaml&form=2".to_owned()),
    ] {
        let got = server.post(path, &form, &[&origin]);
        assert!(got.status == 409 && got.body.contains("--read-only"), "{path}: {}", got.body);
    }
    assert!(folder.run_folder().is_dir());
}

/// A study of these values of `x`, and a server that shows it.
pub fn search(space: &str, budget: &str) -> (Folder, Server) {
    let folder = job::folder("fit 5", "");
    let program = job::program().display();
    folder.write(
        "score.yaml",
        format!(
            "version: 1\nname: score\nengine: process\ncommand: {program} command score 2 --x {{vars.x}}\nvars: {{x: 0}}\n\
             metrics: json\ncontainer: {{gpus: 0}}\n"
        ),
    );
    folder.write(
        "study.yaml",
        format!(
            "version: 1\ntune: search\npipeline: score.yaml\nobjective: {{metric: score, direction: minimize}}\n\
             space:\n  vars.x: {space}\n{budget}\n"
        ),
    );
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let server = Server::start(&folder, &[]);
    (folder, server)
}

fn study() {
    let (_folder, server) = search("{low: -2.0, high: 1.8}", "budget: {trials: 2}\nsampler: random");
    let list = server.page("").body;
    assert!(list.contains("2 of 2 trials") && list.matches("<tr id=").count() == 1, "{list}");
    let trials = server.page("?parts=1").body;
    assert_eq!(trials.matches("<tr id=").count(), 3, "{trials}");
    let id = list.split("<tr id=\"row-").nth(1).and_then(|row| row.split('"').next()).unwrap();
    let page = server.page(&format!("run/{id}")).body;
    for text in ["id=\"parallel\"", "Parameter importance", "href=\"run/search%2D"] {
        assert!(page.contains(text), "no {text:?} in\n{page}");
    }
}

/// The check and the plan come first, and a form that is sent twice starts one run.
fn started() {
    let folder = job::folder("fit 5", "");
    let server = Server::start(&folder, &[]);
    let origin = format!("Origin: http://{}", server.host);
    let wrong = server.post("start", "step=check&file=job.yaml&set=train.bacth%3D1", &[&origin]);
    assert!(wrong.body.contains("bacth") && !wrong.body.contains("Start this run"), "{}", wrong.body);
    let checked = server.post("start", "step=check&file=job.yaml&set=engine%3Dprocess", &[&origin]);
    assert!(checked.body.contains("job.yaml is valid") && checked.body.contains("pipe plan"), "{}", checked.body);
    let form = checked.body.split("name=\"form\" value=\"").nth(1).and_then(|form| form.split('"').next()).unwrap();
    let run = format!("step=run&form={form}&file=job.yaml&set=engine%3Dprocess");
    for _ in 0..2 {
        let got = server.post("start", &run, &[&origin]);
        assert!(got.status == 303 && got.head.contains("done/1"), "{}", got.head);
    }
    folder.wait_until("the run has started", || server.page("done/1").body.contains("<h1>Done</h1>"));
    folder.pipe(&["attach"]).exits(0);
    folder.run_folder();
}

/// A thousand runs: a page of a hundred of them at once, in little memory.
fn many_runs() {
    let folder = job::folder("fit 5", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    for at in 0..1000 {
        let name = format!("copy-20260101-000000-{at:04}");
        fs::create_dir(run.with_file_name(&name)).unwrap();
        let state = fs::read_to_string(run.join("run.json"))
            .unwrap()
            .replace(run.file_name().unwrap().to_str().unwrap(), &name);
        fs::write(run.with_file_name(&name).join("run.json"), state).unwrap();
        fs::hard_link(run.join("events.jsonl"), run.with_file_name(&name).join("events.jsonl")).unwrap();
    }
    let server = Server::start(&folder, &[]);
    let first = server.page("");
    assert!(first.body.contains("1 to 100 of 1,001") && first.body.matches("<tr id=").count() == 100, "{}", first.body);
    assert_eq!(server.page("?q=copy+0999").body.matches("<tr id=").count(), 1);
    assert_eq!(server.page("?page=11").body.matches("<tr id=").count(), 1);
    let began = Instant::now();
    assert_eq!(server.page("").status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // All of it, the program too.
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let kib = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().split(' ').next()?.parse::<u64>().ok())
    };
    assert!(kib("VmHWM:").unwrap() < 150 << 10, "{status}");
}
