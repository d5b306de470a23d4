//! The definition of the clipped sum, in plain f64 loops over gradients that are written out: what every fast path is
//! compared with. Too slow and too large for training.

use super::clip::ClipRule;
use crate::error::{Error, Result};

/// The definition's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// `sum_i c_i g_i`.
    pub sum: Vec<f64>,
    /// `||g_i||` by example.
    pub norms: Vec<f64>,
    /// `c_i` by example, one for each parameter (all equal unless clipped by layer).
    pub factors: Vec<Vec<f64>>,
}

/// The sum of clipped gradients. `grads` holds the gradient of each example (of a batch of one), all parameters one
/// after the other; `lengths` the elements of each parameter. Padding is simply left out.
///
/// # Errors
/// [`Error::Invalid`] for a bad rule; [`Error::Shape`] if a gradient has not the elements of all parameters.
pub fn clipped_sum(grads: &[Vec<f64>], lengths: &[usize], rule: ClipRule) -> Result<Definition> {
    rule.validate()?;
    let n: usize = lengths.iter().sum();
    let mut out = Definition { sum: vec![0.0; n], norms: Vec::new(), factors: Vec::new() };
    for (i, g) in grads.iter().enumerate() {
        if g.len() != n {
            let what = format!("gradient {i} has {} elements, the parameters have {n}", g.len());
            return Err(Error::shape("clipped_sum", what));
        }
        let norm = norm(g);
        let factors = factors(&parts(g, lengths), norm, rule);
        let mut at = 0;
        for (&len, &c) in lengths.iter().zip(&factors) {
            // An example that is dropped contributes nothing, not 0 * NaN.
            if c != 0.0 {
                for k in at..at + len {
                    out.sum[k] += c * g[k];
                }
            }
            at += len;
        }
        out.norms.push(norm);
        out.factors.push(factors);
    }
    Ok(out)
}

fn norm(g: &[f64]) -> f64 {
    g.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn parts<'a>(mut g: &'a [f64], lengths: &[usize]) -> Vec<&'a [f64]> {
    let cut = |&len: &usize| {
        let (part, rest) = g.split_at(len);
        g = rest;
        part
    };
    lengths.iter().map(cut).collect()
}

fn factors(parts: &[&[f64]], total: f64, rule: ClipRule) -> Vec<f64> {
    let clip = |norm: f64, bound: f64| if norm > bound { bound / norm } else { 1.0 };
    if !total.is_finite() {
        return vec![0.0; parts.len()];
    }
    match rule {
        ClipRule::Flat { norm: bound } => vec![clip(total, bound); parts.len()],
        ClipRule::Automatic { norm: bound, gamma } => vec![bound / (total + gamma); parts.len()],
        ClipRule::PerLayer { norm: bound } => {
            let share = bound / (parts.len() as f64).sqrt();
            parts.iter().map(|g| clip(norm(g), share)).collect()
        }
    }
}

/// How far one parameter is from the definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The parameter.
    pub name: String,
    /// `||got - want|| / ||want||`; the plain distance if `want` is zero, infinity if anything is not finite.
    pub relative: f64,
    /// Element with the largest difference.
    pub at: usize,
    /// What was computed there.
    pub got: f64,
    /// What the definition says.
    pub want: f64,
}

/// Compares two vectors parameter by parameter, worst first.
///
/// # Errors
/// [`Error::Shape`] if a vector has not the elements of all parameters.
pub fn compare(params: &[(&str, usize)], got: &[f64], want: &[f64]) -> Result<Vec<Difference>> {
    let n: usize = params.iter().map(|(_, len)| len).sum();
    if got.len() != n || want.len() != n {
        let what = format!("{} and {} elements, the parameters have {n}", got.len(), want.len());
        return Err(Error::shape("compare", what));
    }
    let lengths: Vec<usize> = params.iter().map(|(_, len)| *len).collect();
    let mut out = Vec::new();
    for ((name, _), (got, want)) in
        params.iter().zip(parts(got, &lengths).into_iter().zip(parts(want, &lengths)))
    {
        // What is not a number is the largest difference of all.
        let size =
            |k: usize| Some((got[k] - want[k]).abs()).filter(|d| d.is_finite()).unwrap_or(f64::INFINITY);
        let Some(at) = (0..got.len()).max_by(|&a, &b| size(a).total_cmp(&size(b))) else { continue };
        let distance = (0..got.len()).map(|k| size(k) * size(k)).sum::<f64>().sqrt();
        let scale = norm(want);
        let relative = if scale > 0.0 { distance / scale } else { distance };
        let relative = if relative.is_finite() { relative } else { f64::INFINITY };
        out.push(Difference { name: (*name).to_owned(), relative, at, got: got[at], want: want[at] });
    }
    out.sort_by(|a, b| b.relative.total_cmp(&a.relative));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_by_hand() {
        let grads = [vec![3.0, 0.0, 4.0], vec![0.0, 0.3, 0.4], vec![0.0; 3], vec![f64::NAN, 1.0, 1.0]];
        let flat = clipped_sum(&grads, &[2, 1], ClipRule::Flat { norm: 1.0 }).unwrap();
        assert_eq!(flat.factors, [[0.2; 2], [1.0; 2], [1.0; 2], [0.0; 2]]);
        assert!((flat.sum[0] - 0.6).abs() < 1e-15 && flat.sum[1] == 0.3 && (flat.sum[2] - 1.2).abs() < 1e-15);
        let rule = ClipRule::Automatic { norm: 1.0, gamma: 0.5 };
        let automatic = clipped_sum(&grads, &[2, 1], rule).unwrap();
        assert_eq!(automatic.factors[0], [1.0 / 5.5; 2]);
        assert_eq!(automatic.factors[2], [2.0; 2]);
        let layer = clipped_sum(&grads, &[2, 1], ClipRule::PerLayer { norm: 1.0 }).unwrap();
        assert!((layer.factors[0][0] - 0.5f64.sqrt() / 3.0).abs() < 1e-15);
        assert!((layer.factors[0][1] - 0.5f64.sqrt() / 4.0).abs() < 1e-15);
        assert_eq!(layer.factors[1], [1.0; 2]);
        assert!(clipped_sum(&grads, &[2], ClipRule::Flat { norm: 1.0 }).is_err());
        assert!(clipped_sum(&grads, &[2, 1], ClipRule::Flat { norm: f64::NAN }).is_err());
    }

    #[test]
    fn the_worst_parameter_comes_first_and_nan_is_worst() {
        let params = [("a", 2), ("b", 1), ("c", 1)];
        let found = compare(&params, &[1.0, 2.0, 5.0, f64::NAN], &[1.0, 2.5, 5.0, 1.0]).unwrap();
        let names: Vec<&str> = found.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
        assert_eq!((found[1].at, found[1].want, found[2].relative), (1, 2.5, 0.0));
        assert!(compare(&params, &[1.0], &[1.0]).is_err());
    }
}
