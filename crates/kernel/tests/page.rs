//! The page for operators says of every type of pipe and every operation whether it is compiled.

use weir_kernel::{Coverage, leads_of};
use weir_program::operation::OPERATIONS;
use weir_program::{Entry, Fill, Forward, Group, Learn, Pipe, PipeId, PipeKind, PortDeclaration, Program};

/// Returns what is compiled and what is not, from a row of the page's table.
fn row(name: &str) -> [Vec<String>; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/kernel.md");
    // Bounded: a page of this repository.
    let page = std::fs::read_to_string(path).expect("the page");
    let row = page.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect("a row of the table");
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(String::from).collect();
    let mut cells = row.split('|').skip(2);
    [(); 2].map(|()| words(cells.next().expect("two cells")))
}

/// Whether any packet is handled in the kernel that hits an entry of a pipe.
fn is_compiled(pipe: Pipe) -> bool {
    let program = Program {
        ports: vec![PortDeclaration::new("port")],
        groups: vec![Group::new("group", Fill::Wants, 4)],
        pipes: vec![pipe],
        ..Program::default()
    };
    let coverage = Coverage::of(&program, &leads_of(&program), &[true]);
    coverage.leads[0].iter().any(|lead| coverage.lead(&program, PipeId(0), *lead).is_none())
}

/// Whether the page says so; panics unless it says either.
fn is_said(name: &str, [compiled, left]: &[Vec<String>; 2]) -> bool {
    let is_in = |words: &[String]| {
        let fits =
            |word: &String| word.strip_suffix('*').map_or(word == name, |start| name.starts_with(start));
        words.iter().any(fits)
    };
    assert!(
        is_in(compiled) != is_in(left),
        "docs/how-to/kernel.md has to say once whether `{name}` is compiled"
    );
    is_in(compiled)
}

#[test]
fn every_type_of_pipe_is_compiled_as_the_page_says() {
    let said = row("pipes");
    for mut kind in PipeKind::BLANK {
        if let PipeKind::Flow { learn, .. } = &mut kind {
            *learn = Learn::Default;
        }
        let pipe = Pipe::new("pipe", kind.clone()).forward(Forward::Drop);
        assert_eq!(is_compiled(pipe), is_said(kind.word(), &said), "{}", kind.word());
    }
}

#[test]
fn every_operation_is_compiled_as_the_page_says() {
    let said = row("actions");
    for line in OPERATIONS.iter() {
        let pipe = Pipe::basic("pipe").act([line.blank]).entry(Entry::default());
        assert_eq!(is_compiled(pipe), is_said(line.word, &said), "{}", line.word);
    }
}
