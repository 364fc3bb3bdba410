//! A picture of how far figures are from their targets: one bar each, a line where the target is.
//! Plain SVG, made of text.

use std::fmt::Write;

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The label of the figure.
    pub label: String,
    /// The figure as a part of its bound: up to 1 it is reached, whichever way the bound works.
    pub of_bound: f64,
    /// The figure and the bound as they are written.
    pub text: String,
    /// True if it is reached.
    pub reached: bool,
}

const ROW: f64 = 20.0;
const TOP: f64 = 34.0;
const LABELS: f64 = 390.0;
const BARS: f64 = 330.0;
const TEXTS: f64 = 170.0;
const WIDTH: f64 = LABELS + BARS + TEXTS;
/// Bars are cut off here: farther from the target makes no difference to the reader.
const OF_BOUND_MAX: f64 = 1.6;
const REACHED: &str = "#3b7a57";
const MISSED: &str = "#b5452c";

/// Returns the picture.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let height = TOP + ROW * bars.len() as f64 + 10.0;
    let mut svg = String::new();
    let target = LABELS + BARS / OF_BOUND_MAX;
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\" fill=\"#222222\">{}</text>\n\
         <text x=\"{target}\" y=\"20\" text-anchor=\"middle\" fill=\"#222222\">target</text>\n",
        escaped(title)
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let length = BARS * bar.of_bound.clamp(0.0, OF_BOUND_MAX) / OF_BOUND_MAX;
        let color = if bar.reached { REACHED } else { MISSED };
        let (middle, height, label_end) = (y + 14.0, ROW - 6.0, LABELS - 8.0);
        let text_start = LABELS + BARS + 8.0;
        let _ = write!(
            svg,
            "<text x=\"{label_end}\" y=\"{middle}\" text-anchor=\"end\" fill=\"#222222\">{}</text>\n\
             <rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{height}\" fill=\"{color}\"/>\n\
             <text x=\"{text_start}\" y=\"{middle}\" fill=\"{color}\">{}</text>\n",
            escaped(&bar.label),
            y + 3.0,
            escaped(&bar.text)
        );
    }
    let bottom = height - 6.0;
    let _ = write!(
        svg,
        "<line x1=\"{target}\" y1=\"26\" x2=\"{target}\" y2=\"{bottom}\" stroke=\"#222222\" stroke-dasharray=\"4 3\"/>\n</svg>\n"
    );
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_ends_before_the_line_exactly_when_the_target_is_met() {
        let bar = |of_bound: f64| Bar {
            label: "a < b & c".into(),
            of_bound,
            text: "1×".into(),
            reached: of_bound <= 1.0,
        };
        let svg = bars("title", &[bar(0.5), bar(1.0), bar(7.0)]);
        let target = BARS / OF_BOUND_MAX;
        for (length, color) in [(target / 2.0, REACHED), (target, REACHED), (BARS, MISSED)] {
            let expected = format!("width=\"{length:.1}\" height=\"14\" fill=\"{color}\"");
            assert!(svg.contains(&expected), "{expected} in {svg}");
        }
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    }
}
