//! Lists that the daemon returns a page at a time: they are printed as they arrive.

use super::show::{Connection, PagedTable, section};
use crate::output;
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use weir_control::{Request, Show};

/// The sections that `weir show` prints in pages.
pub const LISTS: [&str; 2] = ["entries", "flows"];

/// Requests one page after the other, and calls `each` with every answer.
fn follow(
    connection: &Connection,
    (what, request): (&str, &Show),
    mut each: impl FnMut(Value) -> Result<()>,
) -> Result<()> {
    let mut request = request.clone();
    loop {
        let mut page: Value = connection.answer(&Request::Show(request.clone()))?;
        let next = page["next"].take();
        if let Some(rows) = page[what].as_array_mut() {
            // The daemon may return slightly more than requested.
            rows.truncate(request.limit.map_or(usize::MAX, |left| left as usize));
            request.limit = request.limit.map(|left| left - rows.len() as u64);
        }
        each(page)?;
        // Without a limit, the daemon applies its own to flows.
        let is_enough = request.limit.map_or(what == "flows", |left| left == 0);
        request.from = next.as_str().map(str::to_string);
        if request.from.is_none() || is_enough {
            return Ok(());
        }
    }
}

/// Prints a list as it arrives.
pub fn print(connection: &Connection, what: &str, request: Show) -> Result<ExitCode> {
    if connection.is_json() {
        return print_json(connection, what, &request);
    }
    let mut table = PagedTable::default();
    let (mut is_first, mut is_empty) = (true, true);
    follow(connection, (what, &request), |page| {
        for (name, value) in page.as_object().into_iter().flatten().filter(|(name, _)| *name != what) {
            if name != "next" {
                output::print(section(name, value))?;
            }
        }
        if std::mem::take(&mut is_first) {
            output::line(what)?;
        }
        let rows = page[what].as_array().map_or(&[][..], Vec::as_slice);
        is_empty &= rows.is_empty();
        if rows.is_empty() { Ok(()) } else { output::print(table.page(rows)) }
    })?;
    if is_empty {
        output::line("  none")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one object, which is complete even if a later page cannot be fetched.
fn print_json(connection: &Connection, what: &str, request: &Show) -> Result<ExitCode> {
    let (mut is_first, mut separator) = (true, "");
    let done = follow(connection, (what, request), |page| {
        if std::mem::take(&mut is_first) {
            output::print("{")?;
            let others = page.as_object().into_iter().flatten().filter(|(name, _)| *name != what);
            for (name, value) in others.filter(|(name, _)| *name != "next") {
                output::print(format_args!("{}:{value},", json!(name)))?;
            }
            output::print(format_args!("{}:[", json!(what)))?;
        }
        for row in page[what].as_array().into_iter().flatten() {
            output::print(format_args!("{separator}{row}"))?;
            separator = ",";
        }
        Ok(())
    });
    match &done {
        _ if is_first => {}
        Ok(()) => output::line("]}")?,
        Err(error) => output::line(format_args!("],\"error\":{}}}", json!(format!("{error:#}"))))?,
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// Returns a whole answer, for comparison with an earlier one.
pub fn whole(connection: &Connection, what: &str, request: &Show) -> Result<Value> {
    if !LISTS.contains(&what) {
        return connection.answer(&Request::Show(request.clone()));
    }
    let mut all = Value::Null;
    follow(connection, (what, request), |mut page| {
        if all.is_null() {
            all = page;
            all.as_object_mut().map(|all| all.remove("next"));
        } else if let (Value::Array(all), Value::Array(more)) = (&mut all[what], page[what].take()) {
            all.extend(more);
        }
        Ok(())
    })?;
    Ok(all)
}
