//! The double keeps the contract of a remote.

use std::future::ready;

use tower_stampede::remote::Double;
use tower_stampede::remote_contract;

remote_contract!(
    #[tokio::test(start_paused = true)]
    ready(Double::new())
);
