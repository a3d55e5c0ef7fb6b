//! A message as a Discord embed, within what Discord takes: 256 characters for a title, 4096 for a description, 1024 for a
//! field, 6000 for all of them together.

use pipe_spec::pipeline::NotifyOn;
use pipe_spec::text::human_bytes;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::message::Message;
use super::shortened;
use crate::clock::iso;
use crate::report::duration;

pub fn embed(message: &Message) -> Value {
    let (title, color) = heading(message);
    json!({
        "embeds": [{
            "title": shortened(&title, 256),
            "description": description(message),
            "color": color,
            "fields": fields(message),
            "footer": { "text": shortened(&message.run, 256) },
            "timestamp": timestamp(message.time),
        }],
        // Nothing that an error says calls anybody.
        "allowed_mentions": { "parse": [] },
    })
}

fn heading(message: &Message) -> (String, u32) {
    let name = &message.name;
    match message.kind {
        NotifyOn::Started => (format!("{name} has started"), 0x34_98_db),
        NotifyOn::Oom => (format!("{name} is out of memory"), 0xe6_7e_22),
        NotifyOn::Retried => (format!("{name} is retried"), 0xf1_c4_0f),
        NotifyOn::Finished => (format!("{name} has finished"), 0x2e_cc_71),
        NotifyOn::Failed => (format!("{name} has failed"), 0xe7_4c_3c),
    }
}

fn description(message: &Message) -> String {
    let text = |text: &Option<String>| shortened(text.as_deref().unwrap_or_default(), 2000);
    match message.kind {
        NotifyOn::Started => format!("On the engine {}.", message.engine),
        NotifyOn::Oom => text(&message.reason),
        NotifyOn::Retried => {
            format!("{}, effective batch {} as before.", text(&message.action), message.effective_batch)
        }
        NotifyOn::Finished => format!("In {}.", duration(message.seconds)),
        // The end of a log has its own layout.
        NotifyOn::Failed => format!("```\n{}\n```", text(&message.error).replace("```", "'''")),
    }
}

fn fields(message: &Message) -> Vec<Value> {
    let batch = message.batch.zip(message.accum).map(|(batch, accum)| format!("{batch} x {accum}"));
    let step = message.step.map(|step| match message.steps {
        Some(steps) => format!("{step} of {steps}"),
        None => step.to_string(),
    });
    let time = (message.kind != NotifyOn::Started).then(|| duration(message.seconds));
    [
        ("Attempt", message.attempt.map(|number| number.to_string())),
        ("Batch x accum", batch),
        ("Step", step),
        ("Loss", message.loss.map(|loss| format!("{loss:.4}"))),
        ("Peak memory", message.peak_memory.map(human_bytes)),
        ("Time", time),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(json!({ "name": name, "value": value?, "inline": true })))
    .collect()
}

fn timestamp(time: f64) -> String {
    iso(OffsetDateTime::from_unix_timestamp(time as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use pipe_spec::Status;

    use super::*;

    fn message(kind: NotifyOn, text: &str) -> Message {
        Message {
            kind,
            run: text.to_owned(),
            name: text.to_owned(),
            status: Status::Running,
            engine: "test".to_owned(),
            attempt: Some(2),
            batch: Some(16),
            accum: Some(4),
            effective_batch: 64,
            cause: None,
            reason: Some(text.to_owned()),
            action: Some(text.to_owned()),
            step: Some(5),
            steps: Some(60),
            loss: Some(1.25),
            peak_memory: Some(1 << 30),
            error: Some(text.to_owned()),
            seconds: 75.0,
            time: 1_000_000_000.0,
        }
    }

    #[test]
    fn no_text_is_too_long_for_discord() {
        let long = "@everyone ``` ".repeat(5000);
        for kind in [NotifyOn::Started, NotifyOn::Oom, NotifyOn::Retried, NotifyOn::Finished, NotifyOn::Failed] {
            let embed = &embed(&message(kind, &long))["embeds"][0];
            let length = |value: &Value| value.as_str().unwrap().chars().count();
            let (title, description) = (length(&embed["title"]), length(&embed["description"]));
            assert!(title <= 256 && (1..=4096).contains(&description), "{kind:?}");
            let fields = embed["fields"].as_array().unwrap();
            assert!(fields.len() <= 25 && fields.iter().all(|field| (1..=1024).contains(&length(&field["value"]))));
            assert!(title + description + length(&embed["footer"]["text"]) < 5500);
        }
    }

    #[test]
    fn an_embed_says_what_matters() {
        let embed = embed(&message(NotifyOn::Failed, "it broke ```"));
        assert_eq!(embed["allowed_mentions"]["parse"], json!([]));
        let embed = &embed["embeds"][0];
        assert_eq!(embed["title"], "it broke ``` has failed");
        assert_eq!(embed["description"], "```\nit broke '''\n```");
        assert_eq!(embed["timestamp"], "2001-09-09T01:46:40Z");
        let values: Vec<&str> =
            embed["fields"].as_array().unwrap().iter().filter_map(|f| f["value"].as_str()).collect();
        assert_eq!(values, ["2", "16 x 4", "5 of 60", "1.2500", "1.0 GiB", "1m15s"]);
    }
}
