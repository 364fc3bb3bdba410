//! The live view of `umemcg top` on a terminal, as a user sees it: under tmux, with screens
//! compared.
//!
//! A test waits for a text on the screen and never for a time, so it does not matter how busy the
//! machine is.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    Ended, Mount, Options, PROGRAM, Stopped, cannot_run, holds_within, needs_mount, run, until,
};

/// A terminal in which a shell runs `umemcg top`.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts the program in a terminal of this size; `None` where there is no tmux.
    fn start(mount: &Mount, size: (u16, u16), environment: &str, arguments: &str) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if Command::new("tmux").arg("-V").output().is_err() {
            cannot_run("needs tmux");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: format!("umemcg-test-{}-{number}", std::process::id()) };
        let cg = mount.cg();
        // What the shell prints before and after shows that the terminal is restored.
        let script = format!(
            "stty -a > {out}/before; echo the shell before; {environment} {PROGRAM} top --control {cg} {arguments}; \
             echo ended with $?; stty -a > {out}/after; exec sleep 1000000",
            out = mount.outside().display(),
            cg = cg.display(),
        );
        let (width, height) = (size.0.to_string(), size.1.to_string());
        // Without its own status line all lines are the program's.
        let server = ["-f", "/dev/null", "start-server", ";", "set-option", "-g", "status", "off", ";"];
        let session = ["new-session", "-d", "-x", &width, "-y", &height, &script];
        terminal.tmux(&[&server[..], &session[..]].concat()).good();
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.socket]).args(arguments);
        // The test may run inside of another tmux.
        command.env_remove("TMUX").env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8");
        run(None, command)
    }

    /// Returns what is on the screen, without spaces at the ends of its lines.
    fn screen(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p"]);
        shown.stdout.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the screen shows something, and returns the screen.
    #[track_caller]
    fn wait(&self, what: &str, shows: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let holds = crate::harness::holds_in_time(|| {
            screen = self.screen();
            shows(&screen)
        });
        assert!(holds, "never on the screen: {what}\n{screen}");
        screen
    }

    /// Waits for all of these texts.
    #[track_caller]
    fn wait_for(&self, texts: &[&str]) -> String {
        self.wait(&format!("{texts:?}"), |screen| texts.iter().all(|text| screen.contains(text)))
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"][..], keys].concat()).good();
    }

    fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]).good();
    }

    /// Returns the process id of the program.
    fn program(&self) -> Pid {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]).good().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    /// Waits for the end of the program, and checks that the terminal is as it was before.
    #[track_caller]
    fn assert_restored(&self, mount: &Mount, code: u8) -> String {
        let screen = self.wait_for(&["the shell before", &format!("ended with {code}")]);
        assert_eq!(self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).good(), "0 1");
        let settings = |name: &str| std::fs::read_to_string(mount.outside().join(name)).unwrap_or_default();
        until("the shell has read the terminal's settings", || settings("after").contains("speed"));
        assert_eq!(settings("before"), settings("after"));
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

/// A mount with /batch (limited) and /batch/job, and /web, each with what it has read.
fn mount_with_groups() -> Mount {
    let mount = Mount::start_with_own_pages();
    mount.sh("mkdir -p $CG/batch/job $CG/web && echo 8m > $CG/batch/memory.max").good();
    mount.sh("head -c 3000000 /dev/urandom > $MNT/f && sync $MNT/f && echo 3 > $CG/vm.drop_caches").good();
    mount.sh_in("batch/job", "cat $MNT/f > /dev/null").good();
    mount
}

#[test]
fn every_page_of_top_is_shown_and_left_by_keys() {
    needs_mount!();
    let mut mount = mount_with_groups();
    let Some(terminal) = Terminal::start(&mount, (80, 24), "", "--interval 100ms --sort name") else {
        return;
    };
    // The root pays for the name of the file that was read if the release of the file arrived after
    // the caches were dropped.
    let mut holder =
        mount.shell("echo $$ > $CG/batch/job/tasks; exec sleep 1000000 < $MNT/f").spawn().unwrap();
    let objects = mount.cg().join("batch/job/memory.kmem.slabinfo");
    until("the group has objects", || {
        let objects = std::fs::read_to_string(&objects).unwrap();
        objects.lines().skip(1).any(|line| !line.ends_with(" 0"))
    });
    let screen = terminal.wait("all groups and their figures", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        screen.contains("8.0M")
            && (3..7)
                .all(|line| lines.get(line).is_some_and(|line| line.ends_with('B') || line.ends_with('M')))
    });
    let lines: Vec<&str> = screen.lines().collect();
    let title = format!("umemcg top  4 groups, line 1 of 4  {}", mount.cg().display());
    assert!(title.starts_with(lines[0].trim_end_matches('…')), "{screen}");
    assert!(lines[0].contains("line 1 of 4  /"), "{screen}");
    assert!(lines[2].starts_with("group▼ ") && lines[2].contains("usage  limit"), "{screen}");
    let names: Vec<String> =
        lines[3..7].iter().map(|line| line.chars().take(24).collect::<String>()).collect();
    let names: Vec<&str> = names.iter().map(|name| name.trim_end()).collect();
    assert_eq!(names, ["▾ /", "  ▾ batch", "      job", "    web"], "{screen}");
    assert!(lines[23].starts_with("q quit  ? help"), "{screen}");

    terminal.keys(&["C-l", "Down", "Left"]);
    terminal.wait("batch is folded", |screen| screen.contains("▸ batch") && !screen.contains("job"));
    terminal.keys(&["Right"]);
    terminal.wait_for(&["▾ batch", "job"]);
    terminal.keys(&["s"]);
    terminal.wait_for(&["usage▼"]);
    terminal.keys(&["/", "j", "o", "Enter"]);
    terminal.wait("only job and those above it", |screen| screen.contains("job") && !screen.contains("web"));
    terminal.keys(&["End", "Enter"]);
    let screen = terminal.wait_for(&["umemcg top  /batch/job", "Holds", "cached by the daemon", "Pressure"]);
    assert!(screen.lines().any(|line| line.starts_with("  usage") && line.contains('M')), "{screen}");
    terminal.keys(&["End"]);
    terminal.wait_for(&["Reclaimed from", "(itself)", "Its own objects"]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    terminal.keys(&["Escape"]);
    terminal.wait_for(&["showing jo", "▾ batch"]);
    terminal.keys(&["v"]);
    terminal.wait_for(&[
        "umemcg top  1 volume ",
        "GET/s",
        "PUT/s",
        mount.data().to_str().unwrap().split_at(10).0,
    ]);
    terminal.keys(&["?"]);
    terminal.wait_for(&["Everywhere", "unfold, fold"]);
    terminal.keys(&["q"]);
    terminal.assert_restored(&mount, 0);
    mount.umount();
}

#[test]
fn a_terminal_that_shrinks_and_grows_is_drawn_anew() {
    needs_mount!();
    let mut mount = mount_with_groups();
    let Some(terminal) = Terminal::start(&mount, (100, 30), "NO_COLOR=1", "--sort name") else { return };
    terminal.wait_for(&["▾ batch", "refaults"]);
    let colours = terminal.tmux(&["capture-pane", "-p", "-e"]).stdout;
    assert!(["[36m", "[32m", "38;5;"].iter().all(|code| !colours.contains(code)), "NO_COLOR: {colours:?}");
    terminal.resize(20, 5);
    let screen = terminal.wait("five lines", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        lines.len() == 5 && lines[4].starts_with("q quit") && lines[1].starts_with("group▼")
    });
    assert!(screen.lines().all(|line| line.chars().count() <= 20), "{screen}");
    let pages =
        [("Enter", "Holds"), ("v", "1 volum"), ("?", "keys"), ("Escape", "1 volum"), ("Escape", "group▼")];
    for (key, text) in pages {
        terminal.keys(&[key]);
        terminal.wait_for(&[text]);
    }
    for (width, height) in [(1, 1), (2, 2), (300, 3), (5, 60)] {
        terminal.resize(width, height);
    }
    terminal.resize(100, 30);
    terminal.wait("as before", |screen| {
        screen.contains("▾ batch") && screen.contains("refaults") && screen.lines().count() == 30
    });
    kill_process(terminal.program(), Signal::TERM).unwrap();
    terminal.assert_restored(&mount, 0);
    mount.umount();
}

#[test]
fn a_terminal_without_utf8_gets_ascii_only() {
    needs_mount!();
    let mut mount = mount_with_groups();
    mount.sh("mkdir $CG/日本 $CG/$'esc\\e[2J'").good();
    let Some(terminal) = Terminal::start(&mount, (80, 24), "LC_ALL=C", "--sort name") else { return };
    let screen = terminal.wait_for(&["- batch", "web", "esc?[2J", "    ??"]);
    assert!(screen.is_ascii(), "{screen}");
    terminal.keys(&["C-c"]);
    terminal.assert_restored(&mount, 0);
    mount.umount();
}

#[test]
fn an_unmount_or_a_signal_ends_top_and_restores_the_screen() {
    needs_mount!();
    let mut mount = mount_with_groups();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let Some(terminal) = Terminal::start(&mount, (80, 24), "", "") else { return };
        terminal.wait_for(&["▾ batch"]);
        kill_process(terminal.program(), signal).unwrap();
        terminal.assert_restored(&mount, 0);
    }
    let Some(terminal) = Terminal::start(&mount, (80, 24), "", "--interval 100ms") else { return };
    terminal.wait_for(&["▾ batch"]);
    mount.umount();
    let screen = terminal.assert_restored(&mount, 4);
    assert!(screen.contains("umemcg: ") && screen.contains("served no more"), "{screen}");
    // What is no control tree is said on the ordinary screen.
    let Some(terminal) = Terminal::start(&mount, (80, 24), "", "") else { return };
    let screen = terminal.assert_restored(&mount, 4);
    assert!(screen.contains("not a control tree"), "{screen}");
}

#[test]
fn a_stop_gives_the_terminal_back_until_top_continues() {
    needs_mount!();
    let mut mount = mount_with_groups();
    // With job control, as in an interactive shell.
    let arguments = "--interval 100ms; echo stopped with $?; read go; fg; true";
    let Some(terminal) = Terminal::start(&mount, (80, 24), "set -m;", arguments) else { return };
    terminal.wait_for(&["▾ batch"]);
    terminal.keys(&["C-z"]);
    let screen = terminal.wait_for(&["the shell before", "stopped with"]);
    assert!(!screen.contains("batch"), "{screen}");
    terminal.keys(&["Enter"]);
    terminal.wait_for(&["▾ batch", "umemcg top  4 groups"]);
    terminal.keys(&["q"]);
    terminal.assert_restored(&mount, 0);
    mount.umount();
}

#[test]
fn a_daemon_that_is_silent_delays_no_key() {
    needs_mount!();
    let mut mount = mount_with_groups();
    let Some(terminal) = Terminal::start(&mount, (80, 24), "", "--interval 100ms --sort name") else {
        return;
    };
    terminal.wait_for(&["▾ batch"]);
    let stopped = Stopped::new(&mount);
    terminal.wait_for(&["the daemon has not answered for"]);
    terminal.keys(&["Down", "Left"]);
    terminal.wait_for(&["▸ batch"]);
    drop(stopped);
    terminal.wait("it answers", |screen| !screen.contains("not answered"));
    terminal.keys(&["q"]);
    terminal.assert_restored(&mount, 0);
    let ends = (0..20).any(|_| is_left_beside_silence(&mount));
    assert!(ends, "a key ends it although the daemon is silent");
    mount.umount();
}

/// Returns whether a key ends the program while the daemon is stopped. It does not if the daemon
/// had taken a request of the program before: the kernel keeps a process until that is answered.
fn is_left_beside_silence(mount: &Mount) -> bool {
    let arguments = "--interval 100ms --sort name";
    let Some(terminal) = Terminal::start(mount, (80, 24), "", arguments) else { return true };
    terminal.wait_for(&["▾ batch"]);
    let stopped = Stopped::new(mount);
    terminal.keys(&["q"]);
    let ends = holds_within(Duration::from_secs(10), || terminal.screen().contains("ended with 0"));
    drop(stopped);
    terminal.assert_restored(mount, 0);
    ends
}

#[test]
fn three_thousand_groups_are_scrolled_and_searched() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { pool: "512M", ..Options::default() });
    mount.sh("cd $CG && mkdir $(seq -f 'pod%04g' 1 3000)").good();
    let Some(terminal) = Terminal::start(&mount, (100, 30), "", "--sort name") else { return };
    terminal.wait_for(&["3001 groups", "pod0001"]);
    // Every group that is shown gets its figures.
    let is_filled = |screen: &str| {
        let mut rows = screen.lines().filter(|line| line.contains("pod")).peekable();
        rows.peek().is_some() && rows.all(|line| line.split_whitespace().count() >= 5)
    };
    terminal.wait("figures", is_filled);
    terminal.keys(&["End"]);
    terminal.wait("the last groups", |screen| screen.contains("pod3000") && is_filled(screen));
    terminal.keys(&["/", "1", "5", "0", "0", "Enter"]);
    terminal.wait("the one that matches", |screen| {
        screen.contains("pod1500") && screen.lines().filter(|line| line.contains("pod")).count() == 1
    });
    terminal.keys(&["Escape"]);
    terminal.wait_for(&["q quit  ? help"]);
    terminal.keys(&["s"]);
    terminal.wait("sorted by usage", |screen| screen.contains("usage▼") && is_filled(screen));
    mount.sh("rmdir $CG/pod3000 && mkdir $CG/aaa").good();
    terminal.keys(&["s", "S", "S", "Home"]);
    terminal.wait_for(&["group▼", "aaa"]);
    terminal.keys(&["q"]);
    terminal.assert_restored(&mount, 0);
    mount.umount();
}
