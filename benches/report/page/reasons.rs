//! Why goals are missed that are missed in the stored report.

/// By the beginning of the figure's id. A goal is missed on one machine and met on another, so
/// there may be a sentence for one that is met.
const REASONS: &[(&str, &str)] = &[
    (
        "fleet.failures.frozen_",
        "A request waits for one call that runs into its time-out, and for the turn after it, in steps of the simulation; the goal has no room for that turn.",
    ),
    (
        "fleet.fan_out_growth",
        "One shard sends all messages and answers all looks. With 10,000 processes the first looks take it longer than the computation, and the fill waits for its turn.",
    ),
    (
        "hit.generic_to_moka_1",
        "A hit also counts its use, its outcome and what it has saved. With 10,000 keys, where memory decides, the goal is met.",
    ),
    (
        "hit.http_to_floor_10000",
        "Each response gets a header section of its own, with the field Age, which the floor does not make.",
    ),
    ("hit.typed_to_generic_1", "Not explained: reports before this one had 0.98 to 1.02."),
    (
        "hit_ratio.least_above_lru",
        "One of 24 cells, a cache that holds nearly all keys which come again. What was tried costs more in other cells (decision 36).",
    ),
    (
        "over_http.route_layer_cpu_to_axum",
        "At this place the layer also reads the route, and axum boxes the service once more.",
    ),
    ("peers.ours.hit_ratio", "A hit also counts its use, its outcome and what it has saved."),
    (
        "peers.ours.leader_leaves",
        "The time counts from the work's end, and a thousand callers are woken on two cores; where the first caller stays it is as long.",
    ),
    (
        "peers.ours_http.leader_leaves",
        "A thousand responses are made and read on two cores; where the first client stays it is as long.",
    ),
    (
        "peers.ours_http.private_known",
        "A thousand requests pass at once, each with a response of its own, on two cores.",
    ),
    (
        "scaling.fill_to_waiter_us",
        "A script and a message of Redis, and a look of the waiter, with three processes on two cores; bare clients take most of it.",
    ),
    ("scaling.hit_1_key_to_moka", "A hit also counts its use, its outcome and what it has saved."),
    (
        "scaling.threads_10000_keys_to_moka",
        "A hit also counts its use, its outcome and what it has saved. The bench of hits has less for the same keys on one thread.",
    ),
    (
        "scaling.waking_100000_to_notify",
        "Each waiter takes the value and gives up its place in the flight. One of Notify only wakes.",
    ),
    (
        "wake.herd.to_library",
        "64 processes share two cores, and each process of this crate also wakes 200 callers, with a value for each. A pair of processes takes 1.3 times as long as bare clients.",
    ),
    ("wake.push.p50", "The fill, the message and the look are three turns of Redis on two cores."),
];

/// Returns the sentence for a figure.
pub(crate) fn why(id: &str) -> Option<&'static str> {
    REASONS.iter().find(|(begin, _)| id.starts_with(begin)).map(|(_, why)| *why)
}
