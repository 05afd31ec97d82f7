//! One request on its way: lookup, origin call, lead, answer.

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod error_response;
pub(crate) mod fallback;
pub(crate) mod future;
pub(crate) mod lead;
pub(crate) mod lookup;
pub(crate) mod miss;
pub(crate) mod nested;
pub(crate) mod normal_form;
pub(crate) mod origin_call;
pub(crate) mod refresh;
pub(crate) mod remote;
pub(crate) mod revalidate;
pub(crate) mod service;
pub(crate) mod unsafe_method;
pub(crate) mod work;
