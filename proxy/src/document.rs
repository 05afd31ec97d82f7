//! A TOML document that is read key by key, and all that is wrong with it, by line.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::size::parse_size;

/// A file that is read, and what was found to be wrong.
pub(crate) struct Document<'i> {
    name: &'i str,
    text: &'i str,
    /// Where the lines after the first begin. A file may have thousands of rules.
    lines: Vec<usize>,
    problems: RefCell<Vec<(usize, String)>>,
}

impl<'i> Document<'i> {
    pub(crate) fn new(name: &'i str, text: &'i str) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        Self { name, text, lines, problems: RefCell::default() }
    }

    /// Reads the document, unless it has no meaning in TOML: all places are noted.
    pub(crate) fn parse(&self) -> Option<Spanned<DeTable<'i>>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        let is_toml = errors.is_empty();
        for error in errors {
            let line = self.line(&error.span().unwrap_or(0..0));
            self.note(line, format!("{}; correct the TOML", error.message()));
        }
        is_toml.then_some(table)
    }

    /// Returns the number of a line, the first one being 1.
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        1 + self.lines.partition_point(|begin| *begin <= span.start)
    }

    pub(crate) fn note(&self, line: usize, problem: String) {
        self.problems.borrow_mut().push((line, problem));
    }

    /// Returns what is wrong, in the order of the file: `FILE:LINE: what`.
    pub(crate) fn into_problems(self) -> Vec<String> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems.dedup();
        let named =
            problems.into_iter().map(|(line, problem)| format!("{}:{line}: {problem}", self.name));
        named.collect()
    }
}

/// One table, of which each key is read once. What is left over at the end is no key.
pub(crate) struct Section<'d, 'i> {
    document: &'d Document<'i>,
    /// How the table is named, such as "`cache`" or "rule `assets`".
    pub(crate) label: String,
    table: &'d DeTable<'i>,
    at: Range<usize>,
    known: RefCell<BTreeSet<&'static str>>,
}

impl<'d, 'i> Section<'d, 'i> {
    pub(crate) fn root(document: &'d Document<'i>, table: &'d Spanned<DeTable<'i>>) -> Self {
        Self::of(document, String::new(), table.get_ref(), table.span())
    }

    fn of(
        document: &'d Document<'i>,
        label: String,
        table: &'d DeTable<'i>,
        at: Range<usize>,
    ) -> Self {
        Self { document, label, table, at, known: RefCell::default() }
    }

    fn find(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'i>>> {
        self.known.borrow_mut().insert(key);
        self.table.get(key)
    }

    pub(crate) fn has(&self, key: &'static str) -> bool {
        self.find(key).is_some()
    }

    /// Returns the line of a key, or of the table where it has no such key.
    pub(crate) fn line(&self, key: &str) -> usize {
        let key = self.table.get_key_value(key).map(|(key, _)| key.span());
        self.document.line(&key.unwrap_or_else(|| self.at.clone()))
    }

    /// Notes what is wrong with a key.
    pub(crate) fn refuse(&self, key: &str, problem: &str) {
        self.document.note(self.line(key), format!("{}`{key}` {problem}", self.prefix()));
    }

    /// Notes what is wrong with the whole table.
    pub(crate) fn refuse_all(&self, problem: &str) {
        self.document.note(self.line(""), format!("{}{problem}", self.prefix()));
    }

    fn prefix(&self) -> String {
        if self.label.is_empty() { String::new() } else { format!("{}: ", self.label) }
    }

    /// Reads a value, if the key is there and its value is one.
    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        match read(self.find(key)?.get_ref()) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.refuse(key, &problem);
                None
            }
        }
    }

    /// Reads a list; each item that is wrong is noted with its own line.
    pub(crate) fn list<T>(
        &self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let value = self.find(key)?;
        let Some(items) = value.get_ref().as_array() else {
            self.refuse(key, "must be a list of texts, such as [\"a\", \"b\"]");
            return None;
        };
        Some(self.items(key, items, read))
    }

    /// Returns whether a list has nothing in it, not even what is wrong.
    pub(crate) fn is_empty_list(&self, key: &'static str) -> bool {
        let items = self.find(key).and_then(|value| value.get_ref().as_array());
        items.is_some_and(|items| items.is_empty())
    }

    fn items<T>(
        &self,
        key: &str,
        items: &DeArray<'_>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for item in items {
            match text(item.get_ref()).and_then(|text| read_text(text, &read)) {
                Ok(item) => all.push(item),
                Err(problem) => {
                    let line = self.document.line(&item.span());
                    self.document.note(line, format!("{}`{key}`: {problem}", self.prefix()));
                }
            }
        }
        all
    }

    /// Returns the table of a key.
    pub(crate) fn section(&self, key: &'static str) -> Option<Section<'d, 'i>> {
        let value = self.find(key)?;
        match value.get_ref().as_table() {
            Some(table) => {
                Some(Section::of(self.document, format!("`{key}`"), table, value.span()))
            }
            None => {
                self.refuse(key, &format!("must be a table: write `[{key}]` above its keys"));
                None
            }
        }
    }

    /// Returns the tables of an array.
    pub(crate) fn sections(&self, key: &'static str) -> Vec<Section<'d, 'i>> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let items = value.get_ref().as_array().map(|items| &items[..]).unwrap_or_default();
        let mut sections = Vec::new();
        for (n, item) in items.iter().enumerate() {
            if let Some(table) = item.get_ref().as_table() {
                let label = format!("{key} {}", n + 1);
                sections.push(Section::of(self.document, label, table, item.span()));
            }
        }
        if sections.len() != items.len() || items.is_empty() {
            self.refuse(key, &format!("must be tables: write `[[{key}]]` above the keys of each"));
        }
        sections
    }

    /// Returns the keys and values of a table whose keys are free.
    pub(crate) fn pairs(&self, key: &'static str) -> Vec<(&'d str, &'d DeValue<'i>, usize)> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            self.refuse(key, "must be a table, such as { 404 = \"10s\" }");
            return Vec::new();
        };
        let pair = |(key, value): (&'d Spanned<_>, &'d Spanned<DeValue<'i>>)| {
            let name: &'d std::borrow::Cow<'i, str> = key.get_ref();
            (&**name, value.get_ref(), self.document.line(&key.span()))
        };
        table.iter().map(pair).collect()
    }

    /// Notes what is wrong in a line of this table.
    pub(crate) fn refuse_at(&self, line: usize, problem: &str) {
        self.document.note(line, format!("{}{problem}", self.prefix()));
    }

    /// Notes all keys that were not asked for.
    pub(crate) fn finish(self) {
        let known = self.known.borrow();
        let unknown = self.table.keys().filter(|key| !known.contains(&**key.get_ref()));
        for key in unknown {
            let all = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
            self.refuse(key.get_ref(), &format!("is no key here; the keys are {all}"));
        }
    }
}

/// Reads a text.
pub(crate) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| "must be a text in quotation marks".into())
}

/// Reads a text by one of the readers that flags have.
pub(crate) fn of_text<T>(
    read: impl Fn(&str) -> Result<T, String>,
) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| read_text(text(value)?, &read)
}

fn read_text<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    read(text).map_err(|problem| format!("{text:?} {problem}"))
}

pub(crate) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "must be true or false".into())
}

/// Reads a duration with a unit.
pub(crate) fn duration(value: &DeValue<'_>) -> Result<std::time::Duration, String> {
    let text = value.as_str().ok_or("must be a duration with a unit, such as \"60s\"")?;
    let time = humantime::parse_duration(text).map_err(|error| {
        format!("{text:?} is no duration ({error}); write for example \"60s\" or \"250ms\"")
    })?;
    if time > LONGEST {
        return Err(format!("{text:?} is longer than 100 years; write a shorter time"));
    }
    Ok(time)
}

/// A clock that is read now has room for it: hyper adds a time-out without a check.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(100 * 366 * 24 * 3600);

/// Reads a duration that is not zero.
pub(crate) fn some_duration(value: &DeValue<'_>) -> Result<std::time::Duration, String> {
    let time = duration(value)?;
    if time.is_zero() {
        Err("is no time at all; write for example \"30s\"".into())
    } else {
        Ok(time)
    }
}

fn whole_number(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Reads a whole number above zero.
pub(crate) fn count(value: &DeValue<'_>) -> Result<usize, String> {
    let number = whole_number(value).and_then(|number| number.try_into().ok());
    number.filter(|number| *number > 0).ok_or_else(|| "must be a whole number above 0".into())
}

/// Reads a whole number between two.
pub(crate) fn number_up_to(max: u32) -> impl Fn(&DeValue<'_>) -> Result<u32, String> {
    move |value| {
        let number = whole_number(value).and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("must be a whole number from 1 to {max}"))
    }
}

/// Reads a number of bytes, or a size with a unit.
pub(crate) fn size(value: &DeValue<'_>) -> Result<u64, String> {
    const RULE: &str = "must be a number of bytes, or a size such as \"64MiB\" or \"500kB\"";
    if let Some(bytes) = whole_number(value) {
        return Ok(bytes);
    }
    value.as_str().and_then(parse_size).ok_or_else(|| RULE.into())
}

/// The same for what fits into memory.
pub(crate) fn length(value: &DeValue<'_>) -> Result<usize, String> {
    size(value)?.try_into().map_err(|_| "is larger than the memory of any machine".into())
}
