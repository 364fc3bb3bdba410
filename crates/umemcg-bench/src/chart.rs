//! Figures over time: charts one below the other over the same seconds, each with lines or dots.
//! Plain SVG, made of text.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// One chart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Dots, not a line.
    pub dots: bool,
    /// Seconds and values.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const HEIGHT: f64 = 150.0;
/// From one chart's top to the next.
const STEP: f64 = HEIGHT + 62.0;
const COLORS: [&str; 4] = ["#2b5c8a", "#b5452c", "#3b7a57", "#777777"];
const NR_TICKS: u32 = 4;

/// Returns the picture.
pub fn charts(title: &str, charts: &[Chart]) -> String {
    let height = TOP + STEP * charts.len() as f64;
    let seconds = highest(charts.iter().flat_map(|chart| &chart.lines), |&(at, _)| at);
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\" fill=\"#222222\">{}</text>\n",
        escaped(title)
    );
    for (at, chart) in charts.iter().enumerate() {
        draw(&mut svg, chart, TOP + 20.0 + STEP * at as f64, seconds);
    }
    svg.push_str("</svg>\n");
    svg
}

fn highest<'c>(lines: impl Iterator<Item = &'c Line>, of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let highest = lines.flat_map(|line| &line.points).map(of).fold(0.0, f64::max);
    if highest > 0.0 { highest } else { 1.0 }
}

fn draw(svg: &mut String, chart: &Chart, top: f64, seconds: f64) {
    let (bottom, width) = (top + HEIGHT, WIDTH - LEFT - RIGHT);
    let value_max = highest(chart.lines.iter(), |&(_, value)| value) * 1.1;
    let x = |at: f64| LEFT + width * at / seconds;
    let y = |value: f64| bottom - HEIGHT * value / value_max;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#222222\">{} ({})</text>",
        top - 8.0,
        escaped(&chart.title),
        escaped(&chart.unit)
    );
    for tick in 0..=NR_TICKS {
        let part = f64::from(tick) / f64::from(NR_TICKS);
        let (value, at) = (value_max * part, seconds * part);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\" fill=\"#222222\">{value:.1}</text>\n\
             <text x=\"{4:.1}\" y=\"{5:.1}\" text-anchor=\"middle\" fill=\"#222222\">{at:.1} s</text>",
            y(value),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            x(at).min(WIDTH - 2.0 * RIGHT),
            bottom + 16.0
        );
    }
    for (nr, line) in chart.lines.iter().enumerate() {
        let color = COLORS[nr % COLORS.len()];
        if line.dots {
            for &(at, value) in &line.points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"1.5\" fill=\"{color}\"/>",
                    x(at),
                    y(value)
                );
            }
        } else {
            let points: Vec<String> =
                line.points.iter().map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
                points.join(" ")
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{color}\">{}</text>",
            WIDTH - RIGHT - 170.0 * nr as f64,
            top - 8.0,
            escaped(&line.name)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_they_belong() {
        let line = |dots, points| Line { name: "a & b".into(), dots, points };
        let chart = Chart {
            title: "t".into(),
            unit: "MiB/s".into(),
            lines: vec![line(false, vec![(0.0, 0.0), (10.0, 100.0)]), line(true, vec![(5.0, 50.0)])],
        };
        let svg = charts("figure", &[chart]);
        // A tenth of room is left above the highest.
        let (top, bottom) = (TOP + 20.0, TOP + 20.0 + HEIGHT);
        let at = |value: f64| bottom - HEIGHT * value / 110.0;
        assert!(svg.contains(&format!(
            "points=\"{LEFT:.1},{bottom:.1} {:.1},{:.1}\"",
            WIDTH - RIGHT,
            at(100.0)
        )));
        assert!(svg.contains(&format!("cy=\"{:.1}\"", at(50.0))) && at(110.0) == top);
        assert!(svg.contains("a &amp; b") && svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn nothing_to_show_is_no_reason_to_fail() {
        let empty = Chart { title: String::new(), unit: String::new(), lines: Vec::new() };
        assert!(!charts("", &[empty]).contains("NaN"));
    }
}
