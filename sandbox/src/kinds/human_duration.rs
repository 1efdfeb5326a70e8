//! Ages in columns of `kubectl get`.

/// Formats a span of seconds the way kubectl prints ages. Upstream: `duration.HumanDuration`.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |large: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{large}{unit}"),
        rest => format!("{large}{unit}{rest}{small}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        // As upstream: the clocks of two machines may differ by a second.
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_equal_those_of_kubectl() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (601, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
