mod case;
mod history;
mod network;
mod node;
mod stage;
mod wire;

#[test]
fn seeds() {
    let n: u64 = std::env::var("SIMULATION_SEEDS").map_or(10_000, |n| n.parse().unwrap());
    let first: u64 = std::env::var("SIMULATION_SEED").map_or(1, |n| n.parse().unwrap());
    let mut rules = std::collections::BTreeMap::new();
    let t = std::time::Instant::now();
    let mut comps = 0;
    for seed in first..first + n {
        let case = case::Case::generate(seed);
        let out = stage::run(&case, n == 1);
        comps += out.computations;
        if n == 1 { println!("{case}"); for l in &out.history { println!("{l}"); } }
        for v in out.violations {
            let e = rules.entry(v.rule).or_insert((0, seed, v.text.clone()));
            e.0 += 1;
        }
    }
    println!("{n} seeds, {comps} computations, {:?}", t.elapsed());
    for (r, (c, s, t)) in &rules { println!("{c} x {r}: first seed {s}: {t}"); }
    assert!(rules.is_empty());
}
