//! The older text format of Prometheus, for clients without OpenMetrics support: `promtool`, and
//! people.

/// The media type of the older format.
pub(crate) const PLAIN_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts OpenMetrics text into the older format. `# HELP` and `# TYPE` lines give a counter its
/// full name; `# UNIT` and `# EOF` lines are left out.
pub(crate) fn plain_text(open_metrics: &str) -> String {
    let mut plain = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if line.starts_with("# HELP ") {
            help = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take() {
                plain += &format!("# HELP {name}{suffix} {text}\n");
            }
            plain += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            plain += line;
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_whole_and_the_end_is_not_told() {
        let open = "# HELP a_bytes Its size.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes 5\n\
                    # HELP b Events.\n# TYPE b counter\nb_total{of=\"x y\"} 7.0\n# EOF\n";
        let plain = "# HELP a_bytes Its size.\n# TYPE a_bytes gauge\na_bytes 5\n\
                     # HELP b_total Events.\n# TYPE b_total counter\nb_total{of=\"x y\"} 7.0\n";
        assert_eq!(plain_text(open), plain);
    }
}
