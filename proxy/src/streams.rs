//! Which streams are shared: the table `share_streams` of the cache, and that of a rule.

use tower_stampede::{StreamReplay, StreamRule};

use crate::document::{Section, boolean, duration, of_text};

/// Reads the table, if it is there and can work.
pub(crate) fn share_streams(parent: &Section<'_, '_>) -> Option<StreamRule> {
    let section = parent.section("share_streams")?;
    let any = |text: &str| Ok(text.to_owned());
    let ends = [
        section.read("end_mark", of_text(any)).map(StreamRule::end_mark),
        section.read("last_event", of_text(any)).map(StreamRule::last_event),
        section.read("finish_reason", boolean).and_then(|is| is.then(StreamRule::finish_reason)),
    ];
    let types = section.list("content_types", any);
    let (ttl, heartbeat) = (section.read("ttl", duration), section.read("heartbeat", duration));
    let replay = section.read("replay", of_text(replay));
    let mut ends = ends.into_iter().flatten();
    let rule = match (ends.next(), ends.next()) {
        (Some(rule), None) => {
            let types = types.iter().flatten().map(String::as_str);
            let mut rule =
                if section.has("content_types") { rule.content_types(types) } else { rule };
            rule = rule.replay(replay.unwrap_or_default());
            rule = ttl.into_iter().fold(rule, StreamRule::ttl);
            rule = heartbeat.into_iter().fold(rule, StreamRule::heartbeat);
            rule.problem().map_or(Ok(rule), Err)
        }
        _ => Err("a stream has one end: set one of `end_mark`, `last_event` and \
                  `finish_reason = true`"
            .into()),
    };
    let rule = rule.map_err(|problem| section.refuse_all(&problem)).ok();
    section.finish();
    rule
}

fn replay(text: &str) -> Result<StreamReplay, String> {
    match text {
        "at_once" => Ok(StreamReplay::AtOnce),
        "paced" => Ok(StreamReplay::Paced),
        _ => Err("is not `at_once` or `paced`".into()),
    }
}
