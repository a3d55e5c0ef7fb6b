//! A Chromium without a window, driven over its DevTools protocol through two pipes: no port, no driver program.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::suite::chromium;

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    last: u64,
    /// The errors on the console of its page.
    pub complaints: Vec<String>,
}

impl Browser {
    /// With an empty profile in `folder`, and one page.
    pub fn start(folder: &Path) -> Self {
        // The browser reads requests from 3 and writes answers to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", "sh", chromium().unwrap()])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"])
            .arg("--hide-scrollbars")
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let (requests, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(answers).split(0).map_while(Result::ok);
            let mut messages = messages.filter_map(|message| serde_json::from_slice::<Value>(&message).ok());
            messages.all(|message| send.send(message).is_ok());
        });
        let mut browser = Self { child, requests, answers: receive, session: None, last: 0, complaints: Vec::new() };
        let target = browser.send("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.send("Target.attachToTarget", attached)["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.send(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// The answer to a request.
    #[track_caller]
    pub fn send(&mut self, method: &str, params: Value) -> Value {
        let message = self.ask(method, params);
        assert!(message["error"].is_null(), "{method}: {message}");
        message["result"].clone()
    }

    /// The answer to a request, or its `error`.
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let request = json!({ "id": self.last, "method": method, "params": params, "sessionId": self.session });
        let request = if self.session.is_none() {
            json!({ "id": self.last, "method": method, "params": params })
        } else {
            request
        };
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.answers.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no answer to {method}"));
            self.note(&message);
            if message["id"] == self.last {
                return message;
            }
        }
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"].to_string())
            }
            _ => {}
        }
    }

    #[track_caller]
    pub fn open(&mut self, address: &str) {
        self.eval("window.left = true");
        self.send("Page.navigate", json!({ "url": address }));
        self.wait_for("!window.left && document.readyState === 'complete'");
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.send("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; it may fail while a page loads.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        let began = Instant::now();
        let safe = format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        loop {
            let params = json!({ "expression": safe, "returnByValue": true });
            // While it goes to another page there is none to ask.
            if self.ask("Runtime.evaluate", params)["result"]["result"]["value"] == true {
                return;
            }
            if began.elapsed() > LIMIT {
                let text = self.eval("location.pathname + '\\n' + document.body.innerText");
                panic!("{expression} is not true of\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A click with the mouse in the middle of the first element that fits, as a person would.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let [x, y] = self.middle(selector);
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            self.mouse(kind, x, y);
        }
    }

    /// Where the middle of an element is, once it is in sight. A page takes no input before it is painted.
    #[track_caller]
    pub fn middle(&mut self, selector: &str) -> [f64; 2] {
        self.wait_for("document.readyState === 'complete'");
        let place = self.eval(&format!(
            "(async () => {{ const frame = () => new Promise(requestAnimationFrame); await frame(); await frame(); \
             const found = document.querySelector({selector:?}); found.scrollIntoView({{block: 'center'}}); \
             const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        [0, 1].map(|at| place[at].as_f64().unwrap())
    }

    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let (button, count) = if kind == "mouseMoved" { ("none", 0) } else { ("left", 1) };
        self.send(
            "Input.dispatchMouseEvent",
            json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": count }),
        );
    }

    /// A key without a letter.
    pub fn press(&mut self, key: &str) {
        let codes = [("End", 35), ("Home", 36), ("ArrowLeft", 37), ("ArrowRight", 39), ("Enter", 13)];
        let code = codes.iter().find(|known| known.0 == key).unwrap().1;
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.send("Input.dispatchKeyEvent", event);
        }
    }

    /// The size of the page in pixels, and its colours.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.send("Emulation.setDeviceMetricsOverride", size);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.send("Emulation.setEmulatedMedia", features);
    }
}

impl Drop for Browser {
    /// With all its processes, which are a group.
    fn drop(&mut self) {
        Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).status().ok();
        self.child.wait().ok();
    }
}
