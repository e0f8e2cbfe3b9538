//! Commands defined by kinds of apps: `weir show KEY [VIEW] [NAME]` and `weir KEY VERB NAME ...`. Both send
//! requests to running apps; the words and the output are defined by the kind ([`Kind`]).

use super::show::Connection;
use super::{bad_input, watch};
use crate::kinds::KINDS;
use crate::output;
use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;
use weir_app::kind::{Kind, Outcome, OwnCommand, Tool, Verb};
use weir_app::request::from_words;
use weir_control::{Request, answer};

/// Name of every subcommand's first argument in the help.
const NAME: &str = "NAME";
/// The flag of tools.
const JSON: &str = "json";

/// Returns the subcommands of all kinds of apps.
pub fn commands() -> impl Iterator<Item = Command> {
    let command = |kind: &Kind| {
        let verbs = kind.verbs.iter().map(|verb| subcommand(kind, verb));
        let tools = kind.tools.iter().map(tool);
        let command = match kind.command {
            Some(own) => (own.arguments)(Command::new(kind.key)),
            None => Command::new(kind.key)
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommands(verbs.chain(tools)),
        };
        // The help of an own command's arguments must not replace the kind's.
        command.about(kind.about).long_about(None)
    };
    kinds().map(command)
}

/// Returns the kinds that have a command.
fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| !kind.verbs.is_empty() || kind.command.is_some())
}

fn subcommand(kind: &Kind, verb: &Verb) -> Command {
    let what = kind.one.map_or(kind.key, |(_, what)| what);
    let name = (!verb.whole).then(|| Arg::new(NAME).help(format!("The {what}")).required(true));
    let arguments = verb.arguments.iter().map(|argument| {
        let arg = Arg::new(argument.name).help(argument.help).required(true);
        if argument.number { arg.value_parser(value_parser!(u32)) } else { arg }
    });
    let flags = verb
        .flags
        .iter()
        .map(|(flag, help)| Arg::new(*flag).long(*flag).help(*help).action(ArgAction::SetTrue));
    // The help of `Connection` must not replace the verb's.
    let connected = Connection::augment_args(Command::new(verb.name).args(name).args(arguments).args(flags));
    connected.about(verb.about).long_about(None)
}

fn tool(tool: &Tool) -> Command {
    let help = format!("Print a JSON object: `{}`", tool.json);
    let json = Arg::new(JSON).long(JSON).help(help).action(ArgAction::SetTrue);
    Command::new(tool.name).about(tool.about).long_about(None).arg(json)
}

/// Runs one of [`commands`]. `None` if `key` is not a command.
///
/// # Errors
/// Fails if there is no daemon or no such app, or if the app refuses.
pub fn run(key: &str, matches: &ArgMatches) -> Option<Result<ExitCode>> {
    let kind = KINDS.iter().find(|kind| kind.key == key)?;
    if let Some(own) = kind.command {
        return Some(perform(own, matches));
    }
    let (name, matches) = matches.subcommand()?;
    if let Some(tool) = kind.tools.iter().find(|tool| tool.name == name) {
        return Some(use_tool(tool, matches.get_flag(JSON)));
    }
    let verb = kind.verbs.iter().find(|verb| verb.name == name)?;
    Some(ask(kind, verb, matches))
}

fn perform(own: &OwnCommand, matches: &ArgMatches) -> Result<ExitCode> {
    let mut print = |text: &str| output::print(text).and_then(|()| output::flush());
    let complaints = (own.run)(matches, super::doctor::nodes, &mut print)?;
    complaints.iter().for_each(|why| output::complain(format_args!("weir: {why}\n")));
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn use_tool(tool: &Tool, is_json: bool) -> Result<ExitCode> {
    let Outcome { ok, complaint, lines, json } = (tool.run)()?;
    if let Some(why) = &complaint {
        output::complain(format_args!("weir: {why}\n"));
    }
    if is_json {
        output::line(json)?;
    } else {
        lines.iter().try_for_each(output::line)?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ask(kind: &Kind, verb: &Verb, matches: &ArgMatches) -> Result<ExitCode> {
    let connection = Connection::from_arg_matches(matches)?;
    let name = if verb.whole { "" } else { matches.get_one::<String>(NAME).map_or("", String::as_str) };
    let argument = |name: &str| match matches.try_get_one::<u32>(name) {
        Ok(number) => number.map(u32::to_string),
        Err(_) => matches.get_one::<String>(name).cloned(),
    };
    let arguments = verb.arguments.iter().filter_map(|one| argument(one.name));
    let flags: Vec<&str> =
        verb.flags.iter().map(|(flag, _)| *flag).filter(|flag| matches.get_flag(flag)).collect();
    let (app, first) =
        kind.one.map_or((name, None), |(app, _)| (app, (!verb.whole).then(|| name.to_string())));
    let flagged = flags.iter().map(|flag| flag.to_string());
    let words = [verb.name.to_string()].into_iter().chain(first).chain(arguments).chain(flagged);
    named(&connection, kind, Some(app))?;
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let request = match kind.one {
        // Its arguments may be mappings as in the file, and it answers words with a sentence.
        Some(_) => json!(words.join(" ")),
        None => from_words(kind.verbs, &words),
    };
    let answer: Value = connection.answer(&Request::app(app, request.clone()))?;
    match (answer.as_str(), connection.is_json()) {
        (Some(_), true) => output::line(json!({ "done": true, "said": answer }))?,
        (Some(said), false) => output::line(said)?,
        (None, is_json) => {
            let more = |next: u64| {
                let mut request = request.clone();
                request["from"] = json!(next);
                connection.answer(&Request::app(app, request))
            };
            match is_json {
                true => print_json(answer, more, output::print)?,
                false => follow(answer, more, |page| output::print((verb.text)(page, &flags)))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Calls `each` with every page of an answer. Only the last page has a count, that of all rows.
fn follow(
    mut page: Value,
    mut more: impl FnMut(u64) -> Result<Value>,
    mut each: impl FnMut(&Value) -> Result<()>,
) -> Result<()> {
    let mut before = 0;
    loop {
        let next = page["next"].as_u64();
        if let Some(fields) = page.as_object_mut() {
            fields.remove("next");
            let count = fields.get("count").and_then(Value::as_u64).map(|count| before + count);
            before = count.unwrap_or(before);
            match (next, count) {
                (Some(_), _) => drop(fields.remove("count")),
                (None, Some(count)) => drop(fields.insert("count".to_string(), json!(count))),
                (None, None) => {}
            }
        }
        each(&page)?;
        let Some(next) = next else { return Ok(()) };
        page = more(next)?;
    }
}

/// Prints one object with the rows of all pages. The object is complete even if a later page cannot be
/// fetched.
fn print_json(
    first: Value,
    more: impl FnMut(u64) -> Result<Value>,
    mut print: impl FnMut(String) -> Result<()>,
) -> Result<()> {
    let fields = || first.as_object().into_iter().flatten();
    let Some((list, _)) = fields().find(|(_, value)| value.is_array()).filter(|_| !first["next"].is_null())
    else {
        return print(format!("{first}\n"));
    };
    let list = list.clone();
    let others = fields().filter(|(name, _)| **name != list && *name != "next" && *name != "count");
    let others: String = others.map(|(name, value)| format!("{}:{value},", json!(name))).collect();
    print(format!("{{{others}{}:[", json!(list)))?;
    let (mut separator, mut count) = ("", 0);
    let done = follow(first, more, |page| {
        for row in page[&list].as_array().into_iter().flatten() {
            print(format!("{separator}{row}"))?;
            separator = ",";
        }
        count = page["count"].as_u64().unwrap_or(count);
        Ok(())
    });
    print(match &done {
        Ok(()) => format!("],\"count\":{count}}}\n"),
        Err(error) => format!("],\"error\":{}}}\n", json!(format!("{error:#}"))),
    })?;
    done
}

/// Runs `weir show KEY ...`. `None` if `key` is not a kind with views.
///
/// # Errors
/// Fails if there is no daemon or no such app.
pub fn show(
    key: &str,
    connection: &Connection,
    of: &[String],
    every: Option<Duration>,
) -> Option<Result<ExitCode>> {
    let kind = KINDS.iter().find(|kind| kind.key == key && !kind.views.is_empty())?;
    Some(view(kind, connection, of, every))
}

fn view(kind: &Kind, connection: &Connection, of: &[String], every: Option<Duration>) -> Result<ExitCode> {
    let word = of.first().map_or("", String::as_str);
    let view = kind.views.iter().find(|view| view.word == word && !word.is_empty());
    let (view, rest) = view.map_or((&kind.views[0], of), |view| (view, &of[1..]));
    if rest.len() > 1 {
        output::complain(format_args!("weir: {}\n", usage(kind)));
        return Ok(bad_input());
    }
    watch::repeat(every, connection.is_json(), || {
        let names = named(connection, kind, rest.first().map(String::as_str))?;
        let request = json!({ "do": view.request });
        let answers = names.iter().map(|name| connection.answer(&Request::app(name, request.clone())));
        let answers = answers.collect::<Result<Vec<Value>>>()?;
        if connection.is_json() {
            return Ok(format!("{}\n", json!({ kind.key: answers })));
        }
        let all: Vec<String> = answers.iter().map(view.text).collect();
        Ok(if all.is_empty() { format!("no {} runs\n", kind.key) } else { all.join("\n") })
    })
}

/// Describes what can be shown: each view, of all apps of the kind or of a single one.
fn usage(kind: &Kind) -> String {
    let head = |word: &str| {
        if word.is_empty() { format!("show {}", kind.key) } else { format!("show {} {word}", kind.key) }
    };
    let forms = kind.views.iter().flat_map(|view| [head(view.word), format!("{} NAME", head(view.word))]);
    let forms: Vec<String> = forms.collect();
    let (last, others) = forms.split_last().expect("a kind that is shown has a view");
    format!("{} or {last}", others.join(", "))
}

/// Returns the names of the running apps of a kind, or only the requested one.
fn named(connection: &Connection, kind: &Kind, name: Option<&str>) -> Result<Vec<String>> {
    let shown: answer::Shown = connection.answer(&Request::show("apps"))?;
    let of_kind = shown.apps.into_iter().filter(|app| app.kind == kind.key);
    let all: Vec<String> = of_kind.map(|app| app.name).collect();
    let key = kind.key;
    match name {
        None => Ok(all),
        Some(name) if all.iter().any(|one| one == name) => Ok(vec![name.to_string()]),
        Some(name) if all.is_empty() => bail!("there is no {key} `{name}`: no {key} app is running"),
        Some(name) => bail!("there is no {key} `{name}`; there is {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a list of five rows.
    fn page(from: u64) -> Result<Value> {
        match from {
            0 => Ok(json!({ "name": "a", "count": 2, "flows": [1, 2], "next": 7 })),
            7 => Ok(json!({ "name": "a", "count": 0, "flows": [], "next": 9 })),
            9 => Ok(json!({ "name": "a", "count": 3, "flows": [3, 4, 5] })),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn pages_are_printed_as_they_come_and_the_last_one_has_the_count_of_all() {
        let mut printed = Vec::new();
        follow(page(0).unwrap(), page, |page| {
            printed.push(page.clone());
            Ok(())
        })
        .unwrap();
        let wanted = [
            json!({ "name": "a", "flows": [1, 2] }),
            json!({ "name": "a", "flows": [] }),
            json!({ "name": "a", "count": 5, "flows": [3, 4, 5] }),
        ];
        assert_eq!(printed, wanted);
    }

    #[test]
    fn pages_become_one_object_even_if_one_is_missing() {
        let json = |first: Value, more: fn(u64) -> Result<Value>| {
            let mut text = String::new();
            let done = print_json(first, more, |piece| {
                text += &piece;
                Ok(())
            });
            (serde_json::from_str::<Value>(&text).unwrap(), done.is_ok())
        };
        let all = json!({ "name": "a", "count": 5, "flows": [1, 2, 3, 4, 5] });
        assert_eq!(json(page(0).unwrap(), page), (all.clone(), true));
        assert_eq!(json(all.clone(), page), (all, true), "a single page");
        let cut = json!({ "name": "a", "flows": [1, 2], "error": "gone" });
        assert_eq!(json(page(0).unwrap(), |_| bail!("gone")), (cut, false));
    }

    #[test]
    fn every_verb_has_its_own_help() {
        for (kind, mut command) in kinds().zip(commands()) {
            let help = command.render_help().to_string();
            assert!(kind.verbs.iter().all(|verb| help.contains(verb.about)), "{help}");
        }
    }
}
