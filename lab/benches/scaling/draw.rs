//! The forms that every curve of this bench has.

use crate::report::{Axis, Content, Exhibit, Role, Scale, Series};

/// What is drawn over the same x.
pub(crate) struct Chart {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) caption: &'static str,
    pub(crate) x: (&'static str, &'static str),
    pub(crate) y: (&'static str, &'static str),
}

impl Chart {
    /// Both axes are logarithmic: what grows in proportion is a straight line
    /// from the lower left, and what costs the same for all is flat.
    pub(crate) fn of(&self, series: Vec<Series>) -> Exhibit {
        let axis = |(label, unit)| Axis::new(label, unit, Scale::Log);
        Exhibit {
            id: self.id.into(),
            title: self.title.into(),
            caption: self.caption.into(),
            content: Content::Lines { x: axis(self.x), y: axis(self.y), series },
        }
    }
}

pub(crate) fn line(name: &str, role: Role, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), role, points, steps: false }
}

/// One point for each row.
pub(crate) fn points<T>(rows: &[T], point: impl Fn(&T) -> (f64, f64)) -> Vec<(f64, f64)> {
    rows.iter().map(point).collect()
}
