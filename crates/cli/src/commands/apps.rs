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
use weir_app::kind::{Kind, Outcome, Tool, Verb};
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
        Command::new(kind.key)
            .about(kind.about)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(verbs.chain(tools))
    };
    KINDS.iter().filter(|kind| !kind.verbs.is_empty()).map(command)
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

/// Runs one of [`commands`]. `None` if `key` is not one of them.
///
/// # Errors
/// Fails if there is no daemon or no such app, or if the app refuses.
pub fn run(key: &str, matches: &ArgMatches) -> Option<Result<ExitCode>> {
    let kind = KINDS.iter().find(|kind| kind.key == key)?;
    let (name, matches) = matches.subcommand()?;
    if let Some(tool) = kind.tools.iter().find(|tool| tool.name == name) {
        return Some(use_tool(tool, matches.get_flag(JSON)));
    }
    let verb = kind.verbs.iter().find(|verb| verb.name == name)?;
    Some(ask(kind, verb, matches))
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
    let words = words.collect::<Vec<_>>().join(" ");
    let mut answer = request(&connection, app, &words)?;
    while let Some(next) = answer["next"].as_u64() {
        append(&mut answer, request(&connection, app, &format!("{words} from {next}"))?);
    }
    match (answer.as_str(), connection.is_json()) {
        (Some(_), true) => output::line(json!({ "done": true, "said": answer }))?,
        (Some(said), false) => output::line(said)?,
        (None, true) => output::line(&answer)?,
        (None, false) => output::print((verb.text)(&answer, &flags))?,
    }
    Ok(ExitCode::SUCCESS)
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
        let answers = names.iter().map(|name| request(connection, name, view.request));
        let answers = answers.collect::<Result<Vec<Value>>>()?;
        if connection.is_json() {
            return Ok(format!("{}\n", json!({ kind.key: answers })));
        }
        let all: Vec<String> = answers.iter().map(view.text).collect();
        Ok(if all.is_empty() { format!("no {} runs\n", kind.key) } else { all.join("\n") })
    })
}

/// Describes what can be shown: each view, of all apps of the kind or of one.
fn usage(kind: &Kind) -> String {
    let head = |word: &str| {
        if word.is_empty() { format!("show {}", kind.key) } else { format!("show {} {word}", kind.key) }
    };
    let forms = kind.views.iter().flat_map(|view| [head(view.word), format!("{} NAME", head(view.word))]);
    let forms: Vec<String> = forms.collect();
    let (last, others) = forms.split_last().expect("a kind that is shown has a view");
    format!("{} or {last}", others.join(", "))
}

/// Appends the next page to an answer: rows are added to rows, and counts to counts.
fn append(answer: &mut Value, page: Value) {
    let Some(all) = answer.as_object_mut() else { return };
    all.remove("next");
    let Value::Object(page) = page else { return };
    for (name, value) in page {
        match (all.get_mut(&name), value) {
            (Some(Value::Array(rows)), Value::Array(more)) => rows.extend(more),
            (Some(count @ Value::Number(_)), Value::Number(more)) => {
                *count = json!(count.as_u64().unwrap_or_default() + more.as_u64().unwrap_or_default());
            }
            (Some(_), _) => {}
            (None, value) => {
                all.insert(name, value);
            }
        }
    }
}

fn request(connection: &Connection, app: &str, words: &str) -> Result<Value> {
    connection.answer(&Request::app(app, words))
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

    #[test]
    fn pages_add_up() {
        let mut all = json!({ "name": "a", "count": 2, "flows": [1, 2], "next": 5 });
        append(&mut all, json!({ "name": "a", "count": 1, "flows": [3], "next": 9 }));
        assert_eq!(all, json!({ "name": "a", "count": 3, "flows": [1, 2, 3], "next": 9 }));
        append(&mut all, json!({ "name": "a", "count": 0, "flows": [] }));
        assert_eq!(all, json!({ "name": "a", "count": 3, "flows": [1, 2, 3] }));
    }

    #[test]
    fn every_verb_has_its_own_help() {
        for (kind, mut command) in KINDS.iter().filter(|kind| !kind.verbs.is_empty()).zip(commands()) {
            let help = command.render_help().to_string();
            assert!(kind.verbs.iter().all(|verb| help.contains(verb.about)), "{help}");
        }
    }
}
