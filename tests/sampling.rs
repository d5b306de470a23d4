//! The Poisson sampler: who is in a batch, how often, and independent of what. Keys are fixed, so a pass stays a pass; the
//! false-alarm rates say how unlikely a fault-free sampler is to fail for a key chosen blindly.

use proptest::prelude::*;
use veilgrad::Error;
use veilgrad::privacy::sampling::{PhysicalBatches, PoissonSampler, physical_batches};
use veilgrad::rng::{Key, Purpose};

fn sampler(n: u64, rate: f64) -> PoissonSampler {
    PoissonSampler::new(n, rate, Key::from_seed(11).derive(Purpose::Sampling)).unwrap()
}

/// Who was drawn, steps by examples.
fn draws(n: u64, rate: f64, steps: u64) -> Vec<Vec<bool>> {
    let sampler = sampler(n, rate);
    (0..steps)
        .map(|step| {
            let batch = sampler.batch(step);
            assert!(batch.windows(2).all(|w| w[0] < w[1]) && batch.iter().all(|&i| i < n), "{batch:?}");
            let mut drawn = vec![false; n as usize];
            batch.iter().for_each(|&i| drawn[i as usize] = true);
            drawn
        })
        .collect()
}

/// Chi-squared with k degrees of freedom as a standard normal (Wilson and Hilferty 1931). Beyond 5: one in 3.5 million.
fn chi_squared_score(chi2: f64, k: f64) -> f64 {
    ((chi2 / k).cbrt() - (1.0 - 2.0 / (9.0 * k))) / (2.0 / (9.0 * k)).sqrt()
}

const RATES: [f64; 5] = [0.003, 0.05, 0.3, 0.7, 0.99];

/// Counts per example and per step are binomial. False-alarm rate: two-sided 5 sigma, 20 times: 1e-5.
#[test]
fn every_example_and_every_step_has_the_right_rate() {
    let (n, steps) = (500u64, 4000u64);
    for rate in RATES {
        let draws = draws(n, rate, steps);
        let per_example: Vec<f64> =
            (0..n as usize).map(|i| draws.iter().filter(|d| d[i]).count() as f64).collect();
        let per_step: Vec<f64> = draws.iter().map(|d| d.iter().filter(|x| **x).count() as f64).collect();
        for (counts, trials) in [(per_example, steps as f64), (per_step, n as f64)] {
            let (mean, variance) = (trials * rate, trials * rate * (1.0 - rate));
            let k = counts.len() as f64;
            let chi2: f64 = counts.iter().map(|c| (c - mean).powi(2) / variance).sum();
            // The binomial's fourth moment makes chi-squared wider where its variance is small.
            let widening = (1.0 + (1.0 - 6.0 * rate * (1.0 - rate)) / (2.0 * variance)).sqrt();
            let score = chi_squared_score(chi2, k) / widening;
            assert!(score.abs() <= 5.0, "rate {rate}: variance off, score {score}");
            let total: f64 = counts.iter().sum();
            let score = (total - k * mean) / (k * variance).sqrt();
            assert!(score.abs() <= 5.0, "rate {rate}: mean off, score {score}");
        }
    }
}

/// Pairs (example, step) at a distance are drawn together as often as chance has it. False-alarm rate: 5 sigma, 40 times:
/// 2e-5.
#[test]
fn draws_are_independent_across_examples_and_steps() {
    let (n, steps) = (500usize, 4000usize);
    for rate in RATES {
        let draws = draws(n as u64, rate, steps as u64);
        let centred = |s: usize, i: usize| f64::from(u8::from(draws[s][i])) - rate;
        let variance = rate * (1.0 - rate);
        for (over_examples, over_steps) in
            [(1, 0), (2, 0), (7, 0), (n / 2, 0), (0, 1), (0, 2), (1, 1), (3, 8)]
        {
            let (mut sum, mut pairs) = (0.0, 0.0);
            for s in over_steps..steps {
                for i in over_examples..n {
                    sum += centred(s, i) * centred(s - over_steps, i - over_examples);
                    pairs += 1.0;
                }
            }
            let score = sum / (variance * f64::sqrt(pairs));
            assert!(score.abs() <= 5.0, "rate {rate}, {over_examples} examples, {over_steps} steps: {score}");
        }
    }
}

/// Gaps between drawn examples are geometric, the first one included. False-alarm rate: 5 sigma, 3 times: 2e-6.
#[test]
fn gaps_are_geometric() {
    for rate in [0.01, 0.2, 0.8] {
        let batch = sampler((200_000.0 / rate) as u64, rate).batch(7);
        let mut next = 0;
        // 20 classes of about equal probability, as far as whole gaps allow.
        let mut bounds: Vec<u64> =
            (1..20).map(|c| ((1.0 - f64::from(c) / 20.0).ln() / (-rate).ln_1p()).ceil() as u64).collect();
        bounds.dedup();
        let mut counts = vec![0.0; bounds.len() + 1];
        for &i in &batch {
            counts[bounds.partition_point(|b| *b <= i - next)] += 1.0;
            next = i + 1;
        }
        let tail = |gap: u64| (gap as f64 * (-rate).ln_1p()).exp();
        let mut edges = vec![1.0];
        edges.extend(bounds.iter().map(|b| tail(*b)));
        edges.push(0.0);
        let (mut chi2, mut classes) = (0.0, 0.0);
        for (count, edge) in counts.iter().zip(edges.windows(2)) {
            let want = batch.len() as f64 * (edge[0] - edge[1]);
            if want > 0.0 {
                assert!(want > 100.0, "a class too small for the test: {want}");
                chi2 += (count - want) * (count - want) / want;
                classes += 1.0;
            } else {
                assert!(*count == 0.0);
            }
        }
        let score = chi_squared_score(chi2, classes - 1.0);
        assert!(classes >= 2.0 && score.abs() <= 5.0, "rate {rate}: {score} over {classes} classes");
    }
}

/// A wrong rate is seen: the tests above are not blind. At two thirds and three halves of the rate the mean is off by far.
#[test]
fn a_wrong_rate_would_be_noticed() {
    let (n, rate) = (2000.0, 0.05);
    for wrong in [rate / 1.5, rate * 1.5] {
        let drawn: usize = (0..400).map(|s| sampler(2000, wrong).batch(s).len()).sum();
        let score = (drawn as f64 - 400.0 * n * rate) / (400.0 * n * rate * (1.0 - rate)).sqrt();
        assert!(score.abs() > 20.0, "{score}");
    }
}

#[test]
fn tiny_and_huge_rates() {
    // Expected 1, 2 and 5 draws a step from 2^53 examples; 5 sigma.
    for expected in [1.0, 2.0, 5.0] {
        let n = 1u64 << 53;
        let sampler = sampler(n, expected / n as f64);
        let batches: Vec<Vec<u64>> = (0..4000).map(|s| sampler.batch(s)).collect();
        let drawn = batches.iter().map(Vec::len).sum::<usize>() as f64;
        assert!((drawn - 4000.0 * expected).abs() <= 5.0 * (4000.0 * expected).sqrt(), "{drawn}");
        let empty = batches.iter().filter(|b| b.is_empty()).count() as f64;
        let chance = f64::exp(-expected);
        assert!((empty - 4000.0 * chance).abs() <= 5.0 * (4000.0 * chance).sqrt(), "{empty}");
        let middle = batches.iter().flatten().map(|&i| i as f64 / n as f64).sum::<f64>() / drawn;
        assert!((middle - 0.5).abs() <= 5.0 / (12.0 * drawn).sqrt(), "{middle}");
    }
    let almost_all = sampler(1000, 1.0 - 1e-12).batch(0);
    assert_eq!(almost_all.len(), 1000);
    assert!(sampler(1000, 1e-300).batch(0).is_empty());
}

#[test]
fn edges_and_determinism() {
    assert!((0..100).all(|s| sampler(10, 0.0).batch(s).is_empty()));
    assert_eq!(sampler(3, 1.0).batch(5), [0, 1, 2]);
    assert_eq!(sampler(1, 1.0).batch(u64::MAX), [0]);
    let (a, b) = (sampler(1000, 0.5), sampler(1000, 0.5));
    let batches: Vec<Vec<u64>> = (0..200).map(|s| a.batch(s)).collect();
    // In any order, and whatever was drawn before.
    for s in (0..200).rev() {
        assert_eq!(b.batch(s as u64), batches[s]);
    }
    let distinct: std::collections::HashSet<&Vec<u64>> = batches.iter().collect();
    assert_eq!(distinct.len(), batches.len(), "two steps drew the same batch");
    let other = PoissonSampler::new(1000, 0.5, Key::from_seed(12).derive(Purpose::Sampling)).unwrap();
    assert_ne!(other.batch(0), batches[0]);
    assert_eq!((a.examples(), a.rate(), a.expected()), (1000, 0.5, 500.0));
}

/// Resumed runs must draw what the run before drew, in every later version too. Made by a ChaCha20 written from RFC 8439's
/// rounds in another language.
#[test]
fn batches_never_change() {
    assert_eq!(sampler(100, 0.05).batch(0), [10, 11, 25, 49, 82]);
    assert_eq!(sampler(100, 0.05).batch(1), [32, 45, 73, 83, 92, 97]);
}

#[test]
fn hostile_numbers_are_refused() {
    for rate in [-0.1, -f64::MIN_POSITIVE, 1.0 + 1e-15, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = PoissonSampler::new(10, rate, Key::from_seed(1)).unwrap_err();
        assert!(matches!(&error, Error::Invalid { field, .. } if field == "sampling rate"), "{error}");
    }
    for n in [0, (1 << 53) + 1, u64::MAX] {
        let error = PoissonSampler::new(n, 1e-16, Key::from_seed(1)).unwrap_err();
        assert!(matches!(&error, Error::Invalid { field, .. } if field == "examples"), "{error}");
    }
    let error = PoissonSampler::new(1 << 53, 0.5, Key::from_seed(1)).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
    assert!(PhysicalBatches::new(&[1], 0).is_err());
    assert!(sampler(10, 0.1).expected_physical_batches(0).is_err());
}

/// The published captioner's batch: 1.3 million of 233.8 million. The work follows the batch, not the data set: a hundred
/// times the examples at a hundredth of the rate takes about as long.
#[test]
fn the_largest_published_batch_is_drawn_quickly() {
    let start = std::time::Instant::now();
    let batch = sampler(233_804_767, 1_310_720.0 / 233_804_767.0).batch(0);
    let seconds = start.elapsed().as_secs_f64();
    assert!((batch.len() as f64 - 1_310_720.0).abs() <= 5.0 * 1_310_720f64.sqrt(), "{}", batch.len());
    assert!(seconds < 2.0, "{seconds} s");
}

#[test]
fn physical_batches_are_padded_to_one_size() {
    let split = physical_batches(&[4, 5, 9], 2);
    assert_eq!(split, [vec![Some(4), Some(5)], vec![Some(9), None]]);
    assert_eq!(physical_batches(&[4, 5], 2), [vec![Some(4), Some(5)]]);
    assert!(physical_batches(&[], 4).is_empty());
    assert_eq!(PhysicalBatches::new(&[], 4).unwrap().len(), 0);
}

/// Mean over many steps against the formula. False-alarm rate: 5 sigma, 5 times: 3e-6; the last two take the wide formula.
#[test]
fn the_expected_number_of_physical_batches() {
    for (n, rate, size) in
        [(100, 0.02, 8), (1000, 0.05, 16), (1000, 0.05, 1), (5000, 0.3, 7), (1_000_000, 0.02, 1)]
    {
        let sampler = sampler(n, rate);
        let counts: Vec<f64> =
            (0..400).map(|s| PhysicalBatches::new(&sampler.batch(s), size).unwrap().len() as f64).collect();
        let mean = counts.iter().sum::<f64>() / 400.0;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 399.0;
        let want = sampler.expected_physical_batches(size).unwrap();
        assert!((mean - want).abs() <= 5.0 * (variance / 400.0).sqrt(), "{n} {rate} {size}: {mean} {want}");
    }
    assert_eq!(sampler(10, 0.0).expected_physical_batches(3).unwrap(), 0.0);
    assert_eq!(sampler(10, 1.0).expected_physical_batches(3).unwrap(), 4.0);
    // One example: one batch with probability q.
    assert!((sampler(1, 0.3).expected_physical_batches(5).unwrap() - 0.3).abs() <= 1e-12);
    // Batches of one: q N of them, in both formulas.
    for n in [1000, 100_000_000] {
        let got = sampler(n, 0.25).expected_physical_batches(1).unwrap();
        assert!((got / (0.25 * n as f64) - 1.0).abs() <= 1e-12, "{got}");
    }
    // Both formulas meet.
    let (narrow, wide) = (sampler(40_000, 0.5), sampler(40_200, 0.5));
    let at = |s: &PoissonSampler| s.expected_physical_batches(1).unwrap() / s.expected();
    assert!((at(&narrow) - at(&wide)).abs() <= 1e-9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Splitting loses nobody, repeats nobody and keeps the order; all batches have the one size, padding is at the end.
    #[test]
    fn splitting_is_lossless(n in 1..400u64, rate in 0.0..=1.0f64, step in any::<u64>(), size in 1..50usize) {
        let logical = sampler(n, rate).batch(step);
        let split = PhysicalBatches::new(&logical, size).unwrap();
        prop_assert_eq!(split.len(), logical.len().div_ceil(size));
        let split: Vec<_> = split.collect();
        prop_assert!(split.iter().all(|b| b.len() == size && b[0].is_some()));
        prop_assert!(split.iter().all(|b| b.is_sorted_by_key(|x| x.is_none())));
        let back: Vec<u64> = split.into_iter().flatten().flatten().collect();
        prop_assert_eq!(back, logical);
    }
}
