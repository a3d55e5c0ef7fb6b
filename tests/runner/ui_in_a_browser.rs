//! `pipe ui` in a real browser: what is seen without a reload, clicked, dragged and typed.

use crate::browser::Browser;
use crate::harness::{Needs, Suite};
use crate::stand_ins::job;
use crate::ui::{Server, search};

pub fn tests(suite: &mut Suite) {
    suite.test("ui::trials_are_selected", Needs::Chromium, selected);
    suite.test("ui::in_a_browser", Needs::Chromium, in_a_browser);
}

/// Trials are selected along an axis, by the pointer and by the keyboard.
fn selected() {
    let (folder, server) = search("[-1, 0, 1, 1.8]", "sampler: grid");
    let list = server.page("").body;
    let id = list.split("<tr id=\"row-").nth(1).and_then(|row| row.split('"').next()).unwrap();
    let mut browser = Browser::start(folder.path());
    browser.look(390, 800, "light");
    browser.open(&server.address);
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.open(&format!("http://{}{}run/{id}", server.host, server.base));
    let faded = "document.querySelectorAll('#parallel .faded').length";
    let says = "document.querySelector('#parallel .selected').textContent";
    assert_eq!(browser.eval(faded), 0);
    let [x, y] = browser.middle("#parallel .handle");
    let height =
        browser.eval("document.querySelector('#parallel .handle').getBoundingClientRect().height").as_f64().unwrap();
    browser.mouse("mousePressed", x, y - 0.45 * height);
    browser.mouse("mouseMoved", x, y - 0.1 * height);
    browser.mouse("mouseReleased", x, y - 0.1 * height);
    browser.wait_for(&format!("{faded} === 2 && {says} === '2 of 4 trials selected.'"));
    let of_choices =
        "[...document.querySelectorAll('#parallel select')].map(one => one.selectedOptions[0].text).join()";
    assert_eq!(browser.eval(of_choices), "1,1.8");
    browser.click("#parallel .handle");
    browser.wait_for(&format!("{faded} === 0 && {says} === ''"));
    assert_eq!(browser.eval(of_choices), "from,to");
    assert_eq!(browser.eval("document.querySelector('#parallel .unselect').offsetHeight"), 0);

    browser.click("#parallel summary");
    browser.eval("document.querySelector('#parallel select').focus()");
    browser.press("End");
    browser.wait_for(&format!("{says} === '1 of 4 trials selected.'"));
    browser.click("#parallel .unselect");
    browser.eval("document.querySelector('#parallel [name=\"to-score\"]').focus()");
    browser.send("Input.insertText", serde_json::json!({ "text": "1" }));
    browser.wait_for(&format!("{says} === '2 of 4 trials selected.'"));
    assert_eq!(browser.eval("document.documentElement.scrollWidth"), 390);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

fn in_a_browser() {
    let folder = job::folder("walk 60 60 8", "train: {batch: 16, effective_batch: 16}\n");
    let server = Server::start(&folder, &[]);
    let mut browser = Browser::start(folder.path());
    browser.look(1280, 900, "light");
    browser.open(&server.address);
    browser.wait_for("document.body.innerText.includes('There is no run in')");
    browser.wait_for("document.querySelector('#live').textContent === 'live'");

    // A live training, seen growing without a reload; its retry too.
    browser.eval("window.stays = true");
    let id = folder.pipe(&["run", "job.yaml", "--engine", "process", "--detach"]).exits(0).stdout.trim().to_owned();
    let row = format!("document.getElementById('row-{id}')");
    browser.wait_for(&format!("{row}.innerText.includes('running') && window.stays"));
    browser.click(&format!("[id='row-{id}'] a"));
    let points = "document.querySelector('#figure-loss [data-steps]').dataset.steps.split(' ').length";
    browser.wait_for(&format!("{points} > 3"));
    browser.eval("window.stays = true");
    let before = browser.eval(points).as_u64().unwrap();
    browser.wait_for(&format!("{points} > {before} && window.stays"));
    browser.wait_for("document.querySelector('#log-lines').textContent.includes('step ')");
    browser.wait_for("document.querySelector('#attempts tbody').rows.length === 2 && window.stays");
    assert!(
        browser
            .eval("document.querySelector('#attempts').innerText")
            .as_str()
            .unwrap()
            .contains("batch 8 instead of 16")
    );

    // Smoothing by the slider, with the keyboard: the raw curve stays, light.
    let smooth = "document.querySelectorAll('#figure-loss g.curve .faint').length";
    assert_eq!(browser.eval(smooth), 0);
    browser.eval("document.querySelector('[data-sets=smooth]').focus()");
    browser.press("End");
    browser.wait_for(&format!("{smooth} === 1 && location.search.includes('smooth=0.999') && window.stays"));
    browser.wait_for("document.querySelector('#curves .note').innerText.includes('smoothed by 0.999')");
    browser.eval("document.querySelector('[name=smooth]').select()");
    browser.send("Input.insertText", serde_json::json!({ "text": "0.5" }));
    browser.wait_for(&format!("{smooth} === 1 && location.search.endsWith('smooth=0.5')"));
    assert_eq!(browser.eval("document.querySelector('[data-sets=smooth]').value"), "0.5");

    // The value under the pointer, and a stretch that is drawn.
    let [x, y] = browser.middle("#figure-loss .scale");
    browser.mouse("mouseMoved", x, y);
    browser.wait_for(
        "!document.querySelector('#tip').hidden && document.querySelector('#tip').innerText.includes('step ')",
    );
    assert!(browser.eval("document.querySelector('#tip').innerText").as_str().unwrap().contains("smoothed"));
    browser.mouse("mousePressed", x - 60.0, y);
    browser.mouse("mouseMoved", x + 40.0, y);
    browser.mouse("mouseReleased", x + 40.0, y);
    browser
        .wait_for("location.search.includes('from=') && !document.querySelector('.scale').dataset.x.startsWith('0 ')");

    // A kill is seen, and stop and resume are clicked.
    browser.open(&format!("http://{}{}run/{id}", server.host, server.base));
    browser.wait_for("document.querySelector('.tag.finished, a.stop')");
    folder.pipe(&["attach", &id]).exits(0);
    let slow =
        ["run", "job.yaml", "--engine", "process", "--set", "container.env.JOB=walk 400 60 16", "--name", "slow"];
    let running = folder.start(&slow);
    browser.open(&format!("http://{}{}?q=slow", server.host, server.base));
    browser.wait_for("document.querySelector('tr.running')");
    let slow = browser.eval("document.querySelector('tr.running').id.slice(4)").as_str().unwrap().to_owned();
    browser.click("tr.running a");
    browser.wait_for(&format!("{points} > 1"));
    running.kill_alive();
    browser.wait_for("document.querySelector('.tag.orphaned')");
    browser.click("a.resume");
    browser.wait_for("document.querySelector('button.resume')");
    browser.click("button.resume");
    browser.wait_for("location.pathname.includes('/done/') && document.querySelector('h1').innerText === 'Done'");
    browser.click("a.button");
    browser.wait_for("document.querySelector('.tag.running') && document.querySelector('a.stop')");
    browser.wait_for("document.querySelector('#attempts tbody').rows.length === 2");
    browser.click("a.stop");
    browser.wait_for("document.querySelector('button.stop')");
    browser.click("button.stop");
    browser.wait_for("document.querySelector('h1').innerText === 'Done'");
    assert_eq!(folder.show()["status"], "stopped");

    // A note and tags are typed, and filter the runs.
    browser.open(&format!("http://{}{}run/{slow}", server.host, server.base));
    browser.click("#notes summary");
    for (name, text) in [("tags", "slow-one kept"), ("note", "<b>stopped</b> by hand")] {
        browser.eval(&format!("document.querySelector('#notes [name={name}]').focus()"));
        browser.send("Input.insertText", serde_json::json!({ "text": text }));
    }
    browser.click("#notes button");
    browser.wait_for("document.querySelector('h1').innerText === 'Done'");
    browser.click("a.button");
    browser.wait_for("document.querySelector('.remarks')?.innerText === '<b>stopped</b> by hand'");
    browser.open(&format!("http://{}{}", server.host, server.base));
    browser.click(".topic[href*='slow%2Done']");
    browser.wait_for("document.querySelectorAll('tr[id]').length === 1 && location.search.includes('tag=')");

    // Two runs are selected and compared.
    browser.open(&format!("http://{}{}", server.host, server.base));
    browser.wait_for("document.querySelectorAll('[name=run]').length === 2");
    for id in [&id, &slow] {
        browser.click(&format!("[id='row-{id}'] input"));
    }
    browser.wait_for("document.querySelector('#compare button').textContent === 'Compare 2 runs'");
    browser.click("#compare button");
    browser.wait_for(
        "document.querySelector('#verdict') && document.querySelectorAll('#figure-loss g.curve').length === 2",
    );
    assert!(
        browser.eval("document.querySelector('#settings').innerText").as_str().unwrap().contains("container.env.JOB")
    );

    // Search without a button, and nothing wider than a phone.
    browser.open(&format!("http://{}{}", server.host, server.base));
    browser.eval("document.querySelector('[name=q]').focus()");
    browser.send("Input.insertText", serde_json::json!({ "text": "slow" }));
    browser.wait_for("document.querySelectorAll('tr[id]').length === 1 && location.search === '?q=slow'");
    browser.look(390, 800, "dark");
    for path in [
        String::new(),
        format!("run/{id}"),
        format!("compare?run={id}&run={slow}"),
        "start".to_owned(),
        "machine".to_owned(),
    ] {
        browser.open(&format!("http://{}{}{path}", server.host, server.base));
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), 390, "{path}");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}
