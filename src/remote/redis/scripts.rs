//! The scripts, each one atomic step on the server. A server that does not know one gets it with
//! the first call: processes that start together load nothing.

use std::sync::LazyLock;

use crate::remote::redis::connection::Script;

macro_rules! scripts {
    ($($name:ident = $file:literal),+ $(,)?) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)+
    };
}

scripts!(
    ACQUIRE = "acquire.lua",
    FILL = "fill.lua",
    RENEW = "renew.lua",
    ABANDON = "abandon.lua",
    INVALIDATE = "invalidate.lua",
    ANNOUNCE = "announce.lua",
    POSITIONS = "positions.lua",
    PUT = "put.lua",
    PROBE = "probe.lua",
    CHECK = "check.lua",
    LOCK = "lock.lua",
    EXTEND = "extend.lua",
    UNLOCK = "unlock.lua",
);
