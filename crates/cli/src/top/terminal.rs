//! The terminal of `weir top`: its modes, drawing, and the bytes of its keys.
//!
//! ratatui computes which cells have changed; here they become bytes, which are written all at once. Only
//! sequences that every terminal since the VT100 understands are used, and bold and reverse instead of
//! colours. So crossterm is not needed, which would take longer to build than ratatui's core.
//!
//! Promise: the terminal's previous modes are restored when [`Modes`] is dropped, and before a panic message
//! is printed, so that the message is visible.

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::Modifier;
use rustix::fd::{AsFd, OwnedFd};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Switches to the alternate screen, clears it, and hides the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";

/// Returns to the previous screen and cursor.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// The size that is used for a terminal that does not report one.
const USUAL: Size = Size::new(80, 24);

/// The maximum size drawn: a terminal may claim any size, and each cell needs memory.
const LARGEST: Size = Size::new(500, 300);

/// The previous state of the terminal.
struct Before {
    terminal: OwnedFd,
    modes: Termios,
}

/// The modes of a terminal on which each key is read when it is pressed, without echo.
pub struct Modes(Arc<Mutex<Option<Before>>>);

impl Modes {
    /// Changes the modes of a terminal.
    ///
    /// # Errors
    /// Fails if the descriptor is not a terminal, or if the terminal does not exist any more.
    pub fn enter(terminal: OwnedFd) -> io::Result<Modes> {
        let modes = Modes(Arc::default());
        modes.enter_again(terminal)?;
        let shared = modes.0.clone();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore(&shared);
            hook(panic);
        }));
        Ok(modes)
    }

    /// Changes the modes again after [`Modes::leave`].
    ///
    /// # Errors
    /// As for [`Modes::enter`].
    pub fn enter_again(&self, terminal: OwnedFd) -> io::Result<()> {
        let modes = tcgetattr(&terminal)?;
        let mut raw = modes.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        File::from(terminal.try_clone()?).write_all(ENTER)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Before { terminal, modes });
        Ok(())
    }

    /// Restores the modes.
    pub fn leave(&self) {
        restore(&self.0);
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

fn restore(before: &Mutex<Option<Before>>) {
    let Some(before) = before.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // A terminal that is gone needs no modes.
    let _ = tcsetattr(&before.terminal, OptionalActions::Now, &before.modes);
    let _ = File::from(before.terminal).write_all(LEAVE);
}

/// Draws on a terminal.
pub struct Drawn {
    terminal: File,
    /// Drawn with the next flush.
    bytes: Vec<u8>,
    /// Where the terminal writes next, if known.
    next: Option<Position>,
    style: Modifier,
}

impl Drawn {
    /// Draws on `terminal`, whose modes have been entered.
    pub fn on(terminal: OwnedFd) -> Drawn {
        Drawn { terminal: terminal.into(), bytes: Vec::new(), next: None, style: Modifier::empty() }
    }

    fn go_to(&mut self, position: Position) {
        if self.next != Some(position) {
            self.bytes.extend(format!("\x1b[{};{}H", position.y + 1, position.x + 1).bytes());
            self.next = Some(position);
        }
    }

    fn write_in(&mut self, style: Modifier) {
        if self.style != style {
            let sequence = match (style.contains(Modifier::BOLD), style.contains(Modifier::REVERSED)) {
                (false, false) => "\x1b[0m",
                (true, false) => "\x1b[0;1m",
                (false, true) => "\x1b[0;7m",
                (true, true) => "\x1b[0;1;7m",
            };
            self.bytes.extend(sequence.bytes());
            self.style = style;
        }
    }
}

impl Backend for Drawn {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, cells: I) -> io::Result<()> {
        for (x, y, cell) in cells {
            self.go_to(Position { x, y });
            self.write_in(cell.modifier);
            self.bytes.extend(cell.symbol().bytes());
            // Terminals disagree about the width of other characters.
            let is_narrow = cell.symbol().is_ascii();
            self.next = is_narrow.then(|| Position { x: x.saturating_add(1), y });
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(self.next.unwrap_or_default())
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.go_to(position.into());
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    /// Clears everything: nothing less is ever requested, because weir draws on the whole screen.
    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.write_in(Modifier::empty());
        self.bytes.extend(b"\x1b[2J");
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(self.terminal.as_fd())?;
        if size.ws_col == 0 || size.ws_row == 0 {
            return Ok(USUAL);
        }
        Ok(Size::new(size.ws_col.min(LARGEST.width), size.ws_row.min(LARGEST.height)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.terminal.write_all(&self.bytes);
        self.bytes.clear();
        written
    }
}
