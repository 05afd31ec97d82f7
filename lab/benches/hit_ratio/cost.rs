//! What the computation of a key takes.

/// In the middle.
pub(crate) const MEDIAN_MICROS: f64 = 10_000.0;

/// Returns the microseconds, the same at each call.
pub(crate) fn cost(key: u64, sigma: f64) -> u64 {
    let mut random = fastrand::Rng::with_seed(key);
    // Box and Muller.
    let (u, v) = (1.0 - random.f64(), random.f64());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    ((MEDIAN_MICROS * (sigma * normal).exp()) as u64).max(1)
}
