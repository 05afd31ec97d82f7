//! What the crowds ask for, and what RFC 9111 permits.

use std::fmt;

use crate::pairs;
use crate::report::Profile;

macro_rules! factor {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

factor!(Method {
    Get = "GET",
    Head = "HEAD",
    Query = "QUERY",
    /// A POST whose body is a query, by the hook of the layer.
    Post = "POST (query)",
});

factor!(
    /// The field `Range`.
    Part {
        Whole = "–",
        First = "first 100",
        Last = "last 100",
        Two = "two parts",
        Beyond = "beyond the end",
    }
);

factor!(
    /// By what the response varies, and what the clients send of it.
    Varying {
        Nothing = "–",
        Encoding = "`Accept-Encoding`, 20 spellings",
        Language = "`Accept-Language`, 2 values",
        Everything = "`*`",
    }
);

factor!(Condition {
    None = "–",
    SameTag = "`If-None-Match`, same",
    OtherTag = "`If-None-Match`, other",
    Since = "`If-Modified-Since`",
    IfRange = "`If-Range`",
    NoCache = "`no-cache`",
});

factor!(
    /// Status and lifetime.
    Answer {
        Lifetime = "200, `max-age`",
        NoLifetime = "200, none",
        Validated = "200, `no-cache`",
        NoStore = "200, `no-store`",
        Private = "200, `private`",
        Moved = "301, none",
        Missing = "404, none",
        Gone = "410, none",
        Failed = "500, none",
        Unavailable = "503, none",
    }
);

factor!(Size {
    Empty = "0",
    Small = "1 KiB",
    Chunked = "1 MiB, chunked",
    TooLarge = "3 MiB, over `max_body`",
});

factor!(StoreKind {
    Memory = "memory",
    Redis = "Redis",
});

factor!(State {
    Cold = "cold",
    Expired = "expired",
});

factor!(
    /// What one more request of the crowd gets, because of a field that no rule reads.
    Odd {
        Nothing = "–",
        NoStore = "`no-store`",
        Cookie = "`Set-Cookie`",
        Varies = "`Vary: *`",
        Found = "302",
        Events = "event stream",
    }
);

/// How many processes a crowd comes to that has Redis.
pub(crate) const PROCESSES: usize = 2;

/// One crowd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) number: usize,
    pub(crate) method: Method,
    pub(crate) part: Part,
    pub(crate) varying: Varying,
    pub(crate) condition: Condition,
    pub(crate) answer: Answer,
    pub(crate) size: Size,
    pub(crate) store: StoreKind,
    pub(crate) state: State,
    pub(crate) odd: Odd,
    /// The odd request is answered before the crowd comes. Otherwise it leads the crowd.
    pub(crate) odd_is_before: bool,
}

/// Two tables: each pair occurs twice or more, beside different values of the other factors.
const SEEDS: [u64; 2] = [1, 2];

/// Returns both tables, or for the quick profile one of them.
pub(crate) fn all(profile: Profile) -> Vec<Row> {
    let sizes = [
        Method::ALL.len(),
        Part::ALL.len(),
        Varying::ALL.len(),
        Condition::ALL.len(),
        Answer::ALL.len(),
        Size::ALL.len(),
        StoreKind::ALL.len(),
        State::ALL.len(),
    ];
    let row = |(number, values): (usize, Vec<usize>)| Row {
        number: number + 1,
        method: Method::ALL[values[0]],
        part: Part::ALL[values[1]],
        varying: Varying::ALL[values[2]],
        condition: Condition::ALL[values[3]],
        answer: Answer::ALL[values[4]],
        size: Size::ALL[values[5]],
        store: StoreKind::ALL[values[6]],
        state: State::ALL[values[7]],
        odd: Odd::Nothing,
        odd_is_before: false,
    };
    let seeds = profile.pick(&SEEDS[..1], &SEEDS);
    let rows = seeds.iter().flat_map(|seed| pairs::rows(&sizes, *seed));
    let mut rows: Vec<_> = rows.enumerate().map(row).collect();
    for odd in &Odd::ALL[1..] {
        for (store, state) in [
            (StoreKind::Memory, State::Cold),
            (StoreKind::Memory, State::Expired),
            (StoreKind::Redis, State::Cold),
            (StoreKind::Redis, State::Expired),
        ] {
            for odd_is_before in [true, false] {
                let number = rows.len() + 1;
                let plain = Row { number, odd: *odd, odd_is_before, store, state, ..PLAIN };
                rows.push(plain);
            }
        }
    }
    rows
}

/// A crowd that may share a page.
const PLAIN: Row = Row {
    number: 0,
    method: Method::Get,
    part: Part::Whole,
    varying: Varying::Nothing,
    condition: Condition::None,
    answer: Answer::Lifetime,
    size: Size::Small,
    store: StoreKind::Memory,
    state: State::Cold,
    odd: Odd::Nothing,
    odd_is_before: false,
};

impl Row {
    /// Returns whether the RFCs let clients share the answer, and the bound on what is kept
    /// in memory does not forbid it.
    pub(crate) fn may_be_shared(&self) -> bool {
        let is_permitted = !matches!(self.answer, Answer::NoStore | Answer::Private);
        // RFC 9110, 13.1.2: each client's POST fails with 412 where its condition does.
        let has_tag = matches!(self.condition, Condition::SameTag | Condition::OtherTag);
        let has_precondition = self.method == Method::Post && has_tag;
        let varies = self.varying == Varying::Everything;
        is_permitted && !has_precondition && !varies && self.size != Size::TooLarge
    }

    /// Returns how many origin requests the crowd may cost where the answer may be shared.
    pub(crate) fn most_calls(&self) -> usize {
        let is_fresh = self.condition == Condition::NoCache || self.answer == Answer::Validated;
        let of_each = if is_fresh { 2 * self.variants() } else { 2 };
        let is_stored = !matches!(self.answer, Answer::Failed | Answer::Unavailable);
        match self.store {
            // A process that does not know the variants has a flight for all of them beside those
            // of each.
            StoreKind::Redis if !is_stored && self.variants() > 1 => {
                (self.variants() + 1) * PROCESSES
            }
            // Through Redis goes what is stored, and answers requests that came later.
            StoreKind::Redis if is_fresh || !is_stored || self.method == Method::Head => {
                of_each * PROCESSES
            }
            _ => of_each,
        }
    }

    /// Returns how many different responses the crowd asks for.
    fn variants(&self) -> usize {
        match self.varying {
            Varying::Encoding | Varying::Language => 2,
            Varying::Nothing | Varying::Everything => 1,
        }
    }
}
