//! The static memory plan: every transient tensor gets a place before anything runs.

use crate::error::{Error, Result};
use crate::record::ALIGN;

/// A tensor that lives from step `first` to step `last`, both included.
#[derive(Clone, Debug)]
pub(super) struct Lifetime {
    pub len: usize,
    pub first: usize,
    pub last: usize,
}

/// Where a tensor lies: arena and first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub arena: usize,
    pub offset: usize,
}

/// Places tensors so that no two that live at once overlap, and returns the arenas' lengths.
///
/// Largest first, each at the lowest offset that is free during its whole life. Arenas hold at most `most`
/// elements; a tensor that fits into none opens another.
pub(super) fn place(tensors: &[Lifetime], most: usize) -> Result<(Vec<Place>, Vec<usize>)> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(tensors[i].len), tensors[i].first));
    let mut places = vec![Place::default(); tensors.len()];
    let mut arenas: Vec<(usize, Vec<usize>)> = Vec::new();
    for i in order {
        let len = tensors[i].len.next_multiple_of(ALIGN);
        if len > most {
            return Err(Error::Limit {
                what: "a tensor of the memory plan (the device's largest buffer)".into(),
                needed: 4 * len as u64,
                allowed: 4 * most as u64,
            });
        }
        let found = arenas.iter().enumerate().find_map(|(arena, (_, members))| {
            let offset = lowest_offset(tensors, &places, members, i, len);
            (offset + len <= most).then_some(Place { arena, offset })
        });
        let place = found.unwrap_or_else(|| {
            arenas.push((0, Vec::new()));
            Place { arena: arenas.len() - 1, offset: 0 }
        });
        let (size, members) = &mut arenas[place.arena];
        *size = (*size).max(place.offset + len);
        members.push(i);
        places[i] = place;
    }
    Ok((places, arenas.into_iter().map(|(size, _)| size).collect()))
}

fn lowest_offset(tensors: &[Lifetime], places: &[Place], members: &[usize], i: usize, len: usize) -> usize {
    let mut busy: Vec<(usize, usize)> = members
        .iter()
        .filter(|&&j| tensors[j].first <= tensors[i].last && tensors[i].first <= tensors[j].last)
        .map(|&j| (places[j].offset, places[j].offset + tensors[j].len.next_multiple_of(ALIGN)))
        .collect();
    busy.sort_unstable();
    let mut offset = 0;
    for (start, end) in busy {
        if offset + len <= start {
            break;
        }
        offset = offset.max(end);
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tensors_that_live_together_never_overlap(
            raw in prop::collection::vec((0usize..500, 0usize..30, 0usize..10), 1..60)
        ) {
            let tensors: Vec<Lifetime> =
                raw.iter().map(|&(len, first, life)| Lifetime { len, first, last: first + life }).collect();
            let (places, arenas) = place(&tensors, 1024).unwrap();
            for i in 0..tensors.len() {
                let end = places[i].offset + tensors[i].len;
                prop_assert!(end <= arenas[places[i].arena] && places[i].offset % ALIGN == 0);
                for j in 0..i {
                    let together = tensors[i].first <= tensors[j].last && tensors[j].first <= tensors[i].last;
                    let apart = places[i].arena != places[j].arena
                        || places[i].offset >= places[j].offset + tensors[j].len
                        || places[j].offset >= end;
                    prop_assert!(!together || apart || tensors[i].len == 0 || tensors[j].len == 0);
                }
            }
        }
    }

    #[test]
    fn a_chain_reuses_two_places() {
        let chain: Vec<Lifetime> = (0..10).map(|i| Lifetime { len: 64, first: i, last: i + 1 }).collect();
        let (_, arenas) = place(&chain, usize::MAX).unwrap();
        assert_eq!(arenas, [128]);
    }

    #[test]
    fn a_tensor_over_the_limit_is_refused() {
        assert!(place(&[Lifetime { len: 2048, first: 0, last: 0 }], 1024).is_err());
    }
}
