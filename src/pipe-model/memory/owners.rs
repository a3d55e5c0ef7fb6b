//! Which rank has which share of something: the parts of a step by their work, the optimizer's state by the size of parameters.

/// For each of them, by its size: the rank that has it. The largest first, each to the rank that has least so far.
pub fn owners(sizes: &[u64], ranks: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(sizes[*index]), *index));
    let mut held = vec![0u64; ranks.max(1) as usize];
    let mut owners = vec![0; sizes.len()];
    for index in order {
        let least = (0..held.len()).min_by_key(|rank| held[*rank]).unwrap_or(0);
        held[least] += sizes[index];
        owners[index] = least as u32;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_alike() {
        let sizes: Vec<u64> = (1..=40).map(|size| size * size * 1000).collect();
        for ranks in 1..=8 {
            let owners = owners(&sizes, ranks);
            let share =
                |rank: u32| (0..40).filter(|index| owners[*index] == rank).map(|index| sizes[index]).sum::<u64>();
            let (most, least) = ((0..ranks).map(share).max().unwrap(), (0..ranks).map(share).min().unwrap());
            assert!(most - least <= *sizes.last().unwrap() / 10, "{ranks} ranks: {most} and {least}");
        }
        assert_eq!(owners(&[5, 9, 1], 1), [0, 0, 0]);
        assert_eq!(owners(&[5, 9, 1], 2), [1, 0, 1]);
        assert_eq!(owners(&[5], 3), [0], "more ranks than parameters");
    }
}
