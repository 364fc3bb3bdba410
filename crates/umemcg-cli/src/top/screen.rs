//! The terminal as a full screen, restored however the program ends.

use std::io::{self, Stdout};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};

use super::model::Model;
use super::theme::Theme;
use super::view;

/// Returns whether the terminal can position text: a dumb terminal only prints lines.
pub fn can_draw() -> bool {
    std::env::var_os("TERM").is_some_and(|kind| !kind.is_empty() && kind != "dumb")
}

/// The terminal in raw mode, with a screen of its own. Dropping it restores the terminal; a panic
/// restores it before printing its message.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    theme: Theme,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// The system's, for example if the terminal is gone.
    pub fn take() -> io::Result<Self> {
        // Undo a partial setup.
        let terminal = ratatui::try_init().inspect_err(|_| restore())?;
        Ok(Self { terminal, theme: Theme::of(|name| std::env::var_os(name)) })
    }

    /// Draws the model, in the current size of the terminal.
    ///
    /// # Errors
    /// The system's.
    pub fn draw(&mut self, model: &mut Model) -> io::Result<()> {
        let theme = self.theme;
        self.terminal.draw(|frame| view::draw(model, frame.buffer_mut(), theme)).map(drop)
    }

    /// Restores the terminal while the program is stopped.
    pub fn give_back(&mut self) {
        let _ = self.terminal.show_cursor();
        restore();
    }

    /// Takes the terminal again.
    ///
    /// # Errors
    /// The system's.
    pub fn take_again(&mut self) -> io::Result<()> {
        self.terminal = ratatui::try_init()?;
        self.clear()
    }

    /// Clears the screen before the next drawing.
    ///
    /// # Errors
    /// The system's.
    pub fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` queries the cursor position, and the thread waiting for keys would
        // consume the answer.
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Restores the terminal. Ignores errors: the terminal may be gone.
fn restore() {
    let _ = ratatui::try_restore();
}
