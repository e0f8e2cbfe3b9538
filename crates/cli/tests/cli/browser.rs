//! Chromium without a screen, driven over HTTP by the WebDriver protocol.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for something that usually takes a moment, because test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of an element's number in answers (WebDriver, section 12).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page, which ends when dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser with a window of this size; `None`, and a line with the reason, if there is none.
    pub fn start((width, height): (u32, u32), dark: bool) -> Option<Browser> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut driver) = command.spawn() else {
            assert!(std::env::var_os("CI").is_none(), "CI has Chromium and its driver");
            eprintln!("skipped: there is no chromedriver (Debian: chromium-driver)");
            return None;
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        // The driver must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Browser { driver, port: port.expect("a driver"), session: String::new() };
        let size = format!("--window-size={width},{height}");
        let mut arguments =
            vec!["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &size];
        if dark {
            arguments.push("--blink-settings=preferredColorScheme=0");
        }
        let options = json!({ "args": arguments });
        let always = json!({ "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" }, "acceptInsecureCerts": false });
        let asked = json!({ "capabilities": { "alwaysMatch": always } });
        let answer = browser.send("POST", "/session", &asked);
        browser.session = answer["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string();
        if width < 500 {
            // A browser window cannot be as narrow as a phone.
            let phone = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": true });
            let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": phone });
            browser.ask("POST", "/goog/cdp/execute", &command);
        }
        Some(browser)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the driver runs");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let length = body.len();
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
        // The driver keeps the connection open, so the length says where the answer ends.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(answer.read_line(&mut line).expect("an answer") > 0, "{method} {path}: no answer");
            let lower = line.to_ascii_lowercase();
            length = lower.strip_prefix("content-length:").map_or(length, |of| of.trim().parse().unwrap());
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).expect("the whole answer");
        let body = String::from_utf8(body).unwrap();
        let value: Value = serde_json::from_str(&body).unwrap_or_else(|why| panic!("{why}: {body}"));
        value["value"].clone()
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, &format!("/session/{}{path}", self.session), body);
        assert!(answer["error"].is_null(), "{method} {path} {body}: {answer}");
        answer
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    /// Stops pages from running scripts, as a browser without JavaScript does.
    pub fn disable_scripts(&self) {
        let params = json!({ "value": true });
        let command = json!({ "cmd": "Emulation.setScriptExecutionDisabled", "params": params });
        self.ask("POST", "/goog/cdp/execute", &command);
    }

    /// Runs the body of a function in the page, and returns what it returns.
    pub fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    pub fn wait_for(&self, expression: &str) {
        let start = Instant::now();
        while self.run(&format!("return !!({expression})")) != true {
            let text = self.run("return document.body.innerText");
            assert!(start.elapsed() < PATIENCE, "`{expression}` is not so in {PATIENCE:?}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    pub fn wait_for_text(&self, text: &str) {
        self.wait_for(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Does something with an element: asks for this below its path, in this order. Begins again if the page
    /// has drawn another element in its place meanwhile.
    fn with_element(&self, using: &str, value: &str, all: &[(&str, Value)]) {
        let start = Instant::now();
        let ask = |path: &str, body: &Value| {
            let answer = self.send("POST", &format!("/session/{}{path}", self.session), body);
            if answer["error"].is_null() { Ok(answer) } else { Err(answer) }
        };
        let done = || -> Result<(), Value> {
            let found = ask("/element", &json!({ "using": using, "value": value }))?;
            let element = found[ELEMENT].as_str().unwrap_or_else(|| panic!("{value}: {found}"));
            all.iter().try_for_each(|(what, body)| ask(&format!("/element/{element}/{what}"), body).map(drop))
        };
        while let Err(answer) = done() {
            assert!(start.elapsed() < PATIENCE, "{value}: {answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks on an element, as a person would: it must be visible.
    pub fn click(&self, css: &str) {
        self.with_element("css selector", css, &[("click", json!({}))]);
    }

    /// Clicks on the button with this text.
    pub fn press(&self, text: &str) {
        let all = "[...document.querySelectorAll('button')]";
        self.wait_for(&format!("{all}.some(one => one.textContent.trim() === {})", json!(text)));
        let path = format!("//button[normalize-space()='{text}']");
        self.with_element("xpath", &path, &[("click", json!({}))]);
    }

    /// Types into an element, over what it contains. The command to clear an element changes it without the
    /// events of a keyboard, so the page would draw the former text again with its next state.
    pub fn write(&self, css: &str, text: &str) {
        // Control-A, and all keys up.
        let keys = format!("\u{e009}a\u{e000}{text}");
        self.with_element("css selector", css, &[("value", json!({ "text": keys }))]);
    }

    /// Presses a key, by its code in WebDriver (section 17.4.2), wherever the focus is.
    pub fn key(&self, key: char) {
        let strokes = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": strokes }]);
        self.ask("POST", "/actions", &json!({ "actions": actions }));
    }

    /// Returns what the browser has logged since the last call.
    pub fn log(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({ "type": "browser" }));
        let text = |one: &Value| one["message"].as_str().unwrap_or_default().to_string();
        log.as_array().unwrap_or_else(|| panic!("{log}")).iter().map(text).collect()
    }

    /// Writes what the window shows to a file, if the variable `SCREENSHOTS` names a folder.
    pub fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("SCREENSHOTS") else { return };
        let picture = self.ask("GET", "/screenshot", &json!({}));
        let bytes = decoded(picture.as_str().unwrap());
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            self.send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Decodes base64.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for byte in text.bytes() {
        let Some(digit) = DIGITS.iter().position(|one| *one == byte) else { continue };
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
