//! Repeats a call, so that each has a closure of its own type.

/// What a computation may fail with.
#[derive(Debug)]
pub struct LoadError;

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it cannot be loaded")
    }
}

impl std::error::Error for LoadError {}

/// Loads a value.
///
/// # Errors
///
/// When there is none.
pub async fn load(key: u64) -> Result<String, LoadError> {
    tokio::task::yield_now().await;
    if key == u64::MAX { Err(LoadError) } else { Ok(key.to_string()) }
}

/// Writes a call 200 times. Each has closures, and so types, of its own.
#[macro_export]
macro_rules! two_hundred {
    ($call:ident) => {
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
        $crate::twenty!($call);
    };
}

/// Writes a call 20 times.
#[macro_export]
macro_rules! twenty {
    ($call:ident) => {
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
        $call!();
    };
}
