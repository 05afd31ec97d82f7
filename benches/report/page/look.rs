//! How the series of a chart are told apart: by colour, and where two share
//! one, by dashes; each has a mark of its own besides.

use maud::{Markup, html};

use super::super::{Content, Part, Role};

/// As many as the style sheet knows.
const COLOURS: usize = 8;
const DASHES: usize = 4;

const MARKS: [&str; 8] = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6L4.4 3.2H-4.4z",
    "M0 -4.8L4.8 0L0 4.8L-4.8 0z",
    "M0 4.6L4.4 -3.2H-4.4z",
    "M-1.4 -4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",
    "M-5 -2h10v4h-10z",
    "M-2 -5h4v10h-4z",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) class: String,
    pub(crate) mark: usize,
}

/// Who is compared with us in a part, in the order of appearance: a name has
/// the same colour in all of its charts.
#[derive(Debug, Default)]
pub(crate) struct Others(Vec<String>);

impl Others {
    pub(crate) fn of(part: &Part) -> Self {
        let mut names: Vec<String> = Vec::new();
        for (name, role) in part.exhibits.iter().flat_map(|exhibit| series(&exhibit.content)) {
            if role == Role::Other && !names.iter().any(|known| known == name) {
                names.push(name.into());
            }
        }
        Self(names)
    }

    /// One for each series of a chart.
    pub(crate) fn looks(&self, content: &Content) -> Vec<Look> {
        let series = series(content);
        let look = |(n, (name, role)): (usize, &(&str, Role))| {
            let before = series.iter().take(n).filter(|(_, earlier)| earlier == role).count();
            Look { class: self.class(name, *role, before), mark: n % MARKS.len() }
        };
        series.iter().enumerate().map(look).collect()
    }

    fn class(&self, name: &str, role: Role, before: usize) -> String {
        match role {
            Role::Ours => format!("ours dash-{}", before % DASHES),
            Role::Without => format!("without dash-{}", before % DASHES),
            Role::Bound => "bound".into(),
            Role::Other => {
                let n = self.0.iter().position(|known| known == name).unwrap_or(0);
                format!("other-{} dash-{}", n % COLOURS, n / COLOURS % DASHES)
            }
        }
    }
}

fn series(content: &Content) -> Vec<(&str, Role)> {
    match content {
        Content::Lines { series, .. } => {
            series.iter().map(|series| (series.name.as_str(), series.role)).collect()
        }
        Content::Bars { series, .. } => {
            series.iter().map(|series| (series.name.as_str(), series.role)).collect()
        }
        Content::Table { .. } => Vec::new(),
    }
}

/// The shapes of the marks, to be used by [`mark`].
pub(crate) fn marks() -> Markup {
    html! {
        @for (n, shape) in MARKS.iter().enumerate() {
            path id={ "mark-" (n) } d=(shape) {}
        }
    }
}

/// A mark at a place of the drawing around it, which a browser names when it
/// is pointed at.
pub(crate) fn mark(look: &Look, x: &str, y: &str, at: Option<&str>, title: &str) -> Markup {
    html! {
        use class={ "mark " (look.class) } href={ "#mark-" (look.mark) } x=(x) y=(y) data-point=[at] {
            @if !title.is_empty() { title { (title) } }
        }
    }
}
