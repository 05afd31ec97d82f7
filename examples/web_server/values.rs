//! How the values of flags are read.

use lexopt::Parser;

pub(crate) fn value<T>(
    name: &str,
    from: &mut Parser,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let given = from.value().map_err(|_| format!("--{name} needs a value"))?;
    let Some(text) = given.to_str() else {
        return Err(format!("--{name}: {given:?} is not UTF-8"));
    };
    read(text).map_err(|reason| format!("--{name}: {text:?} {reason}"))
}

/// The same for a value that is never shown.
pub(crate) fn secret<T>(
    name: &str,
    from: &mut Parser,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let given = from.value().map_err(|_| format!("--{name} needs a value"))?;
    let text = given.to_str().ok_or_else(|| format!("--{name}: is not UTF-8"))?;
    read(text).map_err(|reason| format!("--{name}: {reason}"))
}
