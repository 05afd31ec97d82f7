//! The rules of a layer inside of those of another one.

use std::sync::Arc;

use crate::http::config::HttpConfig;
use crate::http::layer::{Change, KeyRule, Rules};

impl Rules {
    /// Returns these rules inside of `outer`.
    pub(in crate::http) fn inside_of(&self, outer: &Arc<Self>) -> Self {
        let mut rules = match &self.changes {
            Some(changes) => outer.with(changes),
            None => {
                let around = [&outer.around[..], &[Arc::clone(outer)]].concat();
                let (routes, combined) = Default::default();
                let client = self.client.clone().or_else(|| outer.client.clone());
                let forwarded = self.forwarded.clone().or_else(|| outer.forwarded.clone());
                let contexts = [&self.contexts[..], &outer.contexts[..]].concat();
                Self { around, routes, combined, client, forwarded, contexts, ..self.clone() }
            }
        };
        let Self { config, around, .. } = &mut rules;
        around.iter().for_each(|outer| config.narrow(&outer.config));
        rules
    }

    /// Returns these rules with the changes of a route. They stand for both: these are no
    /// longer in force beside them. What rules of the application say of a request further out
    /// is known already.
    fn with(&self, changes: &[Change]) -> Self {
        let mut rules = self.clone();
        rules.key_rules.clear();
        rules.bypass.clear();
        rules.changes = None;
        // What the route keys no longer is a credential again.
        rules.config.count_keyed();
        changes.iter().for_each(|change| change(&mut rules));
        rules.finish()
    }

    /// Returns the settings that are in force: those of layers further out, and these.
    pub(in crate::http) fn configs_in_force(&self) -> impl Iterator<Item = &HttpConfig> + Clone {
        self.around.iter().map(|rules| &rules.config).chain([&self.config])
    }

    /// Returns whether two layers share the same responses among the same
    /// clients, for however long.
    pub(in crate::http) fn share_like(&self, other: &Self) -> bool {
        let same_rule = |(a, b): (&KeyRule, &KeyRule)| Arc::ptr_eq(a, b);
        let same_bypass = self.bypass.len() == other.bypass.len()
            && self.bypass.iter().zip(&other.bypass).all(|(a, b)| Arc::ptr_eq(a, b));
        let same_posts = match (&self.posts, &other.posts) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let same_post_key = match (&self.post_key, &other.post_key) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same_bypass
            && same_posts
            && same_post_key
            && self.scheme == other.scheme
            && self.key_rules.len() == other.key_rules.len()
            && self.key_rules.iter().zip(&other.key_rules).all(same_rule)
            && self.config.shares_like(&other.config)
    }
}
