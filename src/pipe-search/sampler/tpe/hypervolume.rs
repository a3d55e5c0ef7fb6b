//! Which points of a front cover the most together.

/// So many of `among` as `size` says, each next one that adds most to the volume which those before it dominate. Guerreiro et al.,
/// "Greedy Hypervolume Subset Selection in Low Dimensions" (2016).
pub(super) fn largest_subset(losses: &[Vec<f64>], among: &[usize], size: usize) -> Vec<usize> {
    let reference = reference_point(losses, among);
    if reference.iter().any(|one| !one.is_finite())
        || among.iter().any(|one| losses[*one].iter().any(|v| !v.is_finite()))
    {
        return among.iter().copied().take(size).collect();
    }
    // What a point adds becomes less with each one that is chosen, never more: an old figure is a bound.
    let mut left: Vec<(usize, f64)> =
        among.iter().map(|index| (*index, volume_of(&losses[*index], &reference))).collect();
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < size && !left.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        let mut order: Vec<usize> = (0..left.len()).collect();
        order.sort_by(|one, other| left[*other].1.total_cmp(&left[*one].1));
        for place in order {
            if best.is_some_and(|(_, added)| left[place].1 <= added) {
                break;
            }
            let added = added_volume(losses, &chosen, left[place].0, &reference);
            left[place].1 = added;
            if best.is_none_or(|(_, most)| added > most) {
                best = Some((place, added));
            }
        }
        let Some((place, _)) = best else { break };
        chosen.push(left.remove(place).0);
    }
    chosen
}

/// A little worse than the worst of each objective.
fn reference_point(losses: &[Vec<f64>], among: &[usize]) -> Vec<f64> {
    let objectives = among.first().map_or(0, |index| losses[*index].len());
    (0..objectives)
        .map(|objective| {
            let worst = among.iter().map(|index| losses[*index][objective]).fold(f64::NEG_INFINITY, f64::max);
            let reference = (1.1 * worst).max(0.9 * worst);
            if reference == 0.0 { 1e-12 } else { reference }
        })
        .collect()
}

fn volume_of(point: &[f64], reference: &[f64]) -> f64 {
    point.iter().zip(reference).map(|(value, reference)| (reference - value).max(0.0)).product()
}

/// What a point dominates that the chosen ones do not.
fn added_volume(losses: &[Vec<f64>], chosen: &[usize], point: usize, reference: &[f64]) -> f64 {
    let within: Vec<Vec<f64>> = chosen.iter().map(|other| worse_of(&losses[*other], &losses[point])).collect();
    volume_of(&losses[point], reference) - volume(&within, reference)
}

/// What all of them dominate together: one after the other, each without what the following ones dominate too. While et al., "A Fast
/// Way of Calculating Exact Hypervolumes" (2012).
fn volume(points: &[Vec<f64>], reference: &[f64]) -> f64 {
    let mut sum = 0.0;
    for (index, point) in points.iter().enumerate() {
        let mut within: Vec<Vec<f64>> = Vec::new();
        for other in &points[index + 1..] {
            let limited = worse_of(other, point);
            if within.iter().any(|one| covers(one, &limited)) {
                continue;
            }
            within.retain(|one| !covers(&limited, one));
            within.push(limited);
        }
        sum += volume_of(point, reference) - volume(&within, reference);
    }
    sum
}

fn worse_of(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one.max(*other)).collect()
}

fn covers(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_overlapping_boxes() {
        let table: [(&[[f64; 3]], f64); 3] = [
            (&[[0.0, 0.0, 0.0]], 8.0),
            (&[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], 6.0),
            (&[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], 7.0),
        ];
        for (points, expected) in table {
            let points: Vec<Vec<f64>> = points.iter().map(|point| point.to_vec()).collect();
            assert_eq!(volume(&points, &[2.0, 2.0, 2.0]), expected, "{points:?}");
        }
    }

    #[test]
    fn the_subset_covers_the_front() {
        // Three close to each other in the middle, and both ends.
        let losses: Vec<Vec<f64>> =
            [[0.0, 10.0], [4.9, 5.1], [5.0, 5.0], [5.1, 4.9], [10.0, 0.0]].iter().map(|one| one.to_vec()).collect();
        let chosen = largest_subset(&losses, &[0, 1, 2, 3, 4], 3);
        assert_eq!(chosen[0], 2);
        assert!(chosen.contains(&0) && chosen.contains(&4), "{chosen:?}");
        assert_eq!(largest_subset(&[vec![f64::INFINITY, 0.0], vec![0.0, 1.0]], &[0, 1], 1), [0]);
    }
}
