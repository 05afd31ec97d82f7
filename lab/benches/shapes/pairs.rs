//! A table of rows in which each pair of values of two factors occurs.

use std::collections::BTreeSet;

/// A value of a factor, and a value of another one.
type Pair = ((usize, usize), (usize, usize));

/// Makes rows for factors with so many values each. Greedy: each row begins with a pair that
/// is missing, and each further factor takes the value that adds the most missing pairs. Of
/// several such values, `seed` decides.
pub(crate) fn rows(sizes: &[usize], seed: u64) -> Vec<Vec<usize>> {
    let mut missing = all_pairs(sizes);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rows = Vec::new();
    while let Some(&((first, a), (second, b))) = missing.first() {
        let mut row = vec![None; sizes.len()];
        (row[first], row[second]) = (Some(a), Some(b));
        for factor in 0..sizes.len() {
            if row[factor].is_none() {
                let added = |value: &usize| {
                    let others =
                        row.iter().enumerate().filter_map(|(at, other)| Some((at, (*other)?)));
                    others.filter(|&other| missing.contains(&pair((factor, *value), other))).count()
                };
                let mut values: Vec<_> = (0..sizes[factor]).collect();
                random.shuffle(&mut values);
                row[factor] = values.into_iter().max_by_key(added);
            }
        }
        let row: Vec<_> = row.into_iter().flatten().collect();
        for (at, &a) in row.iter().enumerate() {
            for (other, &b) in row.iter().enumerate().skip(at + 1) {
                missing.remove(&((at, a), (other, b)));
            }
        }
        rows.push(row);
    }
    rows
}

fn pair(one: (usize, usize), other: (usize, usize)) -> Pair {
    if one.0 < other.0 { (one, other) } else { (other, one) }
}

fn all_pairs(sizes: &[usize]) -> BTreeSet<Pair> {
    let values = |factor: usize| (0..sizes[factor]).map(move |value| (factor, value));
    let later = |factor: usize| (factor + 1..sizes.len()).flat_map(values);
    let of = |factor| values(factor).flat_map(move |a| later(factor).map(move |b| (a, b)));
    (0..sizes.len()).flat_map(of).collect()
}
