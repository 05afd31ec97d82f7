//! The page of the report: scales, numbers, and what may be in a part. What a
//! reader sees of it is looked at by `scripts/check_report`, in a browser.

use std::fs;
use std::path::Path;

use crate::fixtures::{exhibit, line, part, parts};
use crate::report::page::number::{short, tick, with_unit};
use crate::report::page::scale::{Direction, Ruler};
use crate::report::page::{assemble, page};
use crate::report::{Axis, BarSeries, Cell, Content, Figure, Part, Role, Scale};

const SCALES: [Scale; 3] = [Scale::Linear, Scale::Log, Scale::Percentile];
const DIRECTIONS: [Direction; 3] = [Direction::Across, Direction::Up, Direction::Bars];

fn close(found: Option<f64>, expected: f64) {
    let found = found.expect("the value has a place");
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

// ===== Scales =====

#[test]
fn an_axis_upwards_begins_with_nothing_and_ends_with_a_round_number() {
    let ruler = Ruler::new(Scale::Linear, Direction::Up, &[30.0, 97.0]);
    assert_eq!(ruler.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    close(ruler.place(0.0), 0.0);
    close(ruler.place(25.0), 0.25);
    close(ruler.place(100.0), 1.0);
}

#[test]
fn an_axis_across_is_as_long_as_its_values() {
    let ruler = Ruler::new(Scale::Linear, Direction::Across, &[100.0, 104.0, 110.0]);
    close(ruler.place(100.0), 0.0);
    close(ruler.place(110.0), 1.0);
    assert_eq!(ruler.ticks(), [100.0, 102.0, 104.0, 106.0, 108.0, 110.0]);
}

#[test]
fn marks_have_no_noise_of_binary_fractions() {
    let ruler = Ruler::new(Scale::Linear, Direction::Up, &[0.5]);
    assert_eq!(ruler.ticks(), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
}

#[test]
fn below_nothing_there_is_room_as_well() {
    let ruler = Ruler::new(Scale::Linear, Direction::Bars, &[-2.5, 7.25]);
    assert_eq!(ruler.ticks(), [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0]);
    close(ruler.place(-4.0), 0.0);
}

#[test]
fn a_logarithmic_axis_is_marked_at_powers_of_ten() {
    let ruler = Ruler::new(Scale::Log, Direction::Across, &[10.0, 5_000.0, 100_000.0]);
    assert_eq!(ruler.ticks(), [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]);
    close(ruler.place(10.0), 0.0);
    close(ruler.place(1_000.0), 0.5);
    close(ruler.place(100_000.0), 1.0);
    assert_eq!(ruler.place(-1.0), None);
}

#[test]
fn a_short_logarithmic_axis_is_marked_between_them_and_a_long_one_at_some() {
    let short = Ruler::new(Scale::Log, Direction::Up, &[3.0, 40.0]);
    assert_eq!(short.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
    let long = Ruler::new(Scale::Log, Direction::Up, &[1e-9, 1e9]);
    assert!((4..=10).contains(&long.ticks().len()), "{:?}", long.ticks());
}

#[test]
fn nothing_has_a_place_of_its_own_on_a_logarithmic_axis() {
    let ruler = Ruler::new(Scale::Log, Direction::Up, &[0.0, 1.0, 100.0]);
    assert_eq!(ruler.ticks()[0], 0.0);
    close(ruler.place(0.0), 0.0);
    close(ruler.place(1.0), 0.1);
    close(ruler.place(10.0), 0.55);
}

#[test]
fn the_smallest_bar_of_a_logarithmic_chart_can_be_seen() {
    for smallest in [1.0, 1.5, 3.0, 9.9] {
        let ruler = Ruler::new(Scale::Log, Direction::Bars, &[smallest, 1_000.0]);
        assert!(ruler.place(smallest).unwrap() > 0.07, "{smallest}");
    }
}

#[test]
fn percentiles_go_up_in_equal_steps_and_the_largest_comes_last() {
    let ruler = Ruler::new(Scale::Percentile, Direction::Across, &[50.0, 99.99, 100.0]);
    assert_eq!(ruler.ticks(), [50.0, 90.0, 99.0, 99.9, 99.99, 100.0]);
    let place = |value| ruler.place(value).unwrap();
    let step = place(99.0) - place(90.0);
    assert!((place(99.9) - place(99.0) - step).abs() < 1e-9);
    assert!(place(99.99) < 0.95);
    close(ruler.place(100.0), 1.0);
    assert_eq!(ruler.place(100.5), None);
}

#[test]
fn whatever_is_measured_has_a_place_in_order_or_none() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, f64::MIN_POSITIVE / 2.0];
    let large = [f64::MAX, f64::MIN, 1e300, 1e-300, 100.0, 99.999_999_999_999_99, 7.0];
    let all: Vec<f64> = odd.into_iter().chain(large).collect();
    for from in 0..all.len() {
        for to in from..=all.len() {
            SCALES.iter().for_each(|scale| check_order(*scale, &all[from..to]));
        }
    }
}

fn check_order(scale: Scale, values: &[f64]) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    for direction in DIRECTIONS {
        let ruler = Ruler::new(scale, direction, values);
        assert!(ruler.ticks().len() <= 13, "{:?}", ruler.ticks());
        let places: Vec<f64> = sorted.iter().filter_map(|value| ruler.place(*value)).collect();
        assert!(places.is_sorted(), "{scale:?} {direction:?} {sorted:?} {places:?}");
    }
}

// ===== Numbers =====

#[test]
fn whole_numbers_are_written_in_full_and_others_with_three_digits() {
    let said =
        [0.0, 1.0, 1_234_567.0, 12_345.678, 123.45, 12.345, 9.996, 0.5, 0.012_345, -1_500.25];
    let expected =
        ["0", "1", "1,234,567", "12,346", "123", "12.3", "10.0", "0.5", "0.0123", "−1,500"];
    assert_eq!(said.map(short), expected);
    assert_eq!([1.234e-7, 1e300, f64::NAN].map(short), ["1.23e-7", "1.00e300", "–"]);
}

#[test]
fn numbers_beside_an_axis_are_short() {
    let said = [0.2, 1_000.0, 10_000.0, 2_500_000.0, 1e9];
    assert_eq!(said.map(tick), ["0.2", "1,000", "10k", "2.5M", "1G"]);
}

#[test]
fn a_number_comes_with_its_unit() {
    assert_eq!(with_unit(1.0, "calls"), "1 call");
    assert_eq!(with_unit(0.0, "calls"), "0 calls");
    assert_eq!(with_unit(1.0, "processes"), "1 process");
    assert_eq!(with_unit(1.0, "ms"), "1 ms");
    assert_eq!(with_unit(1.07, ""), "1.07 ×");
}

// ===== The page =====

#[test]
fn text_is_never_taken_for_tags() {
    let page = page(&parts()).unwrap();
    assert!(page.contains("&lt;script&gt;alert('a title')&lt;/script&gt; &amp; &quot;more&quot;"));
    assert!(page.contains("&lt;/svg&gt;&lt;script&gt;"));
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>"));
}

#[test]
fn values_that_are_none_do_no_harm() {
    let odd = vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, 0.0), (-1.0, -1.0)];
    for (x, y) in SCALES.iter().flat_map(|x| SCALES.map(|y| (*x, y))) {
        let content = |points: Vec<(f64, f64)>, steps| {
            let mut series = line("odd", Role::Ours, points);
            series.steps = steps;
            let (x, y) = (Axis::new("x", "", x), Axis::new("y", "", y));
            Content::Lines { x, y, series: vec![series, line("empty", Role::Without, Vec::new())] }
        };
        let contents =
            [content(odd.clone(), true), content(odd.clone(), false), content(Vec::new(), true)];
        contents.into_iter().for_each(draws);
        draws(Content::Lines {
            x: Axis::new("x", "", x),
            y: Axis::new("y", "", y),
            series: Vec::new(),
        });
    }
    for scale in SCALES {
        let values = vec![Some(f64::NAN), None, Some(f64::NEG_INFINITY), Some(-3.0)];
        let series = vec![BarSeries { name: "odd".into(), role: Role::Other, values }];
        let categories =
            ["a", "b", "c", "d", "more than there are values"].map(String::from).to_vec();
        draws(Content::Bars { value: Axis::new("v", "", scale), categories, series });
        draws(Content::Bars {
            value: Axis::new("v", "", scale),
            categories: vec![],
            series: vec![],
        });
    }
    draws(Content::Table { columns: vec![], rows: vec![vec![], vec![Cell::Number(f64::NAN)]] });
}

fn draws(content: Content) {
    let mut part = part("odd", "odd");
    part.figures = vec![Figure::new("odd.none", "none", f64::NAN, "", "").at_most(1.0)];
    part.exhibits = vec![exhibit("odd.exhibit", "odd", content)];
    let page = page(&[part]).unwrap();
    let drawn = page.split("<section").nth(1).unwrap();
    for line in drawn.split(" d=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(!line.contains("NaN") && !line.contains("inf"), "{line}");
    }
}

#[test]
fn a_missed_goal_is_said_at_the_top_and_at_the_figure() {
    let page = page(&parts()).unwrap();
    let top = page.split("<section").next().unwrap();
    assert!(top.contains("5 of 6 bounds and goals are met. Missed:"), "{top}");
    assert!(top.contains("href=\"#figure-load.redis_frozen.p99_ms\""));
    assert!(page.contains("✗ missed"));
}

#[test]
fn names_that_are_not_unique_are_refused_by_name() {
    let mut two = parts();
    two[0].figures.push(Figure::new("scaling.wake_per_waiter_ns", "again", 1.0, "ns", ""));
    let error = page(&two).unwrap_err().to_string();
    assert_eq!(error, "two of figure scaling.wake_per_waiter_ns");
    let mut two = parts();
    let again = two[0].exhibits[0].clone();
    two[1].exhibits.push(again);
    assert_eq!(page(&two).unwrap_err().to_string(), "two of exhibit wake.latency");
    let mut two = parts();
    two.push(part("load", "again"));
    assert_eq!(page(&two).unwrap_err().to_string(), "two of part load");
}

// ===== The directory =====

fn write(parts: &[Part], directory: &Path) {
    parts.iter().for_each(|part| part.write(directory).unwrap());
}

#[test]
fn all_parts_are_put_together_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    write(&parts(), directory.path());
    assemble(directory.path()).unwrap();
    let results = fs::read_to_string(directory.path().join("results.json")).unwrap();
    let names = ["load", "peers", "wake", "scaling", "zebra"];
    let places = names.map(|name| results.find(&format!("\n  \"{name}\": {{")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    for part in parts() {
        let expected = serde_json::to_value(&part.exhibits).unwrap();
        assert!(results[&part.name]["exhibits"] == expected, "{} has changed", part.name);
    }
    for (name, beginning) in [("report.html", "<!DOCTYPE html>"), ("front.svg", "<svg xmlns")] {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(text.starts_with(beginning), "{name}");
    }
    let dark = fs::read_to_string(directory.path().join("front-dark.svg")).unwrap();
    assert!(!dark.contains("var("), "a README's picture has its colours in it");
}

#[test]
fn a_part_that_cannot_be_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write(&[part("hit", "cut short")], directory.path());
    fs::write(directory.path().join("parts/hit.json"), "{").unwrap();
    let error = assemble(directory.path()).unwrap_err().to_string();
    assert!(error.contains("hit.json: EOF"), "{error}");
}

#[test]
fn a_part_with_a_number_that_is_none_is_refused_where_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let with = |number| {
        let mut part = part("odd", "a ratio of nothing to nothing");
        part.figures = vec![Figure::new("odd.figure", "a figure", number, "", "")];
        let content = Content::Table {
            columns: vec!["column".into()],
            rows: vec![vec![Cell::Number(number)]],
        };
        part.exhibits.push(exhibit("odd.table", "a table", content));
        part
    };
    let mut in_a_table = with(f64::NAN);
    in_a_table.figures.clear();
    for part in [with(f64::NAN), with(f64::INFINITY), in_a_table] {
        assert!(part.write(directory.path()).is_err());
    }
    with(1.5).write(directory.path()).unwrap();
}

#[test]
fn without_a_chart_to_begin_with_there_is_a_page() {
    let directory = tempfile::tempdir().unwrap();
    write(&[part("hit", "no exhibits")], directory.path());
    assemble(directory.path()).unwrap();
    assert!(directory.path().join("report.html").exists());
    assert!(!directory.path().join("front.svg").exists());
}

/// For `scripts/check_report target/tmp/report`, with `--prove` too.
#[test]
fn a_report_is_left_for_the_browser() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    let _ = fs::remove_dir_all(&directory);
    write(&parts(), &directory);
    assemble(&directory).unwrap();
}
