//! What the program does besides serving: `init`, `completions` and `man`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::kit::proxy::{Answer, Backend, Client, Origin, Pace, Proxy, get};

type Fields = &'static [(&'static str, &'static str)];

const PAGE: Fields = &[
    ("server", "a-server"),
    ("cache-control", "public, max-age=60"),
    ("vary", "accept-encoding, Cookie"),
    ("etag", "\"1\""),
];
const SESSION: Fields =
    &[("set-cookie", "session=top-secret; Path=/"), ("xkey", "front"), ("x-accel-expires", "60")];

/// A folder with no file, and the path of a file that will be in it.
fn place() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml").to_str().unwrap().to_owned();
    (folder, file)
}

/// Runs a command that ends by itself, while origins of the test answer.
async fn run(arguments: &[&str]) -> (Output, String) {
    let arguments: Vec<_> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let run = move || Proxy::refuse(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = [&*output.stdout, &*output.stderr].concat();
    (output, String::from_utf8(said).unwrap())
}

async fn origin(fields: Fields) -> Backend {
    Backend::start(Answer::ok(fields).head(Pace::AtOnce)).await
}

/// Writes a file for an origin that answers with these fields; returns its text.
async fn written(origin: &Backend, file: &str) -> String {
    let (output, said) = run(&["init", &origin.url(), "--file", file]).await;
    assert!(output.status.success(), "{said}");
    assert_eq!(origin.hits(), 1, "requests for a look");
    std::fs::read_to_string(file).unwrap()
}

/// Puts each setting in force that the file offers.
fn all_in_force(text: &str, token: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting,
        _ => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    text.replace("/etc/stampede/token", token)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_init_starts_a_proxy_that_does_what_the_file_says() {
    let (_folder, file) = place();
    let origin = origin(PAGE).await;
    let text = written(&origin, &file).await;
    for part in [
        "was answered with 200 OK",
        "server: a-server",
        "cache-control: public, max-age=60",
        "vary: accept-encoding, Cookie",
        "So the proxy stores this page",
        "`Vary: Cookie` makes a response for each",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("set_cookie") && !text.contains("make_etags"), "{text}");
    let proxy = Proxy::start_with(&["--config", &file]);
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..2 {
        assert_eq!(client.ask(get("/")).await.unwrap().body, "answer 2 to all");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_that_init_offers_is_accepted() {
    let (folder, file) = place();
    let token = folder.path().join("token").to_str().unwrap().to_owned();
    std::fs::write(&token, "a-token-for-operators").unwrap();
    let text = written(&origin(SESSION).await, &file).await;
    for part in [
        "set-cookie: session=...",
        "detail=no-freshness",
        "So the proxy does not store this page",
        "Without a lifetime",
        "#set_cookie = \"strip\"",
        "#make_etags = true",
        "#tags_from = [\"xkey\"]",
        "#lifetime_from = [\"x-accel-expires\"]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("top-secret"), "{text}");
    let all = all_in_force(&text, &token);
    assert!(all.contains("\n[[rule]]"), "{all}");
    std::fs::write(&file, all).unwrap();
    let (output, said) = run(&["--config", &file, "--check-config"]).await;
    assert!(output.status.success(), "{said}");
}

/// The file calls nothing stored that another cache has stored, and shows no secret without a name.
#[tokio::test(flavor = "multi_thread")]
async fn init_says_what_this_proxy_makes_of_the_page() {
    let (_folder, file) = place();
    const BEHIND: Fields = &[
        ("cache-control", "no-store"),
        ("cache-status", "other; fwd=miss; stored"),
        ("set-cookie", "top-secret"),
    ];
    let text = written(&Backend::start(Answer::ok(BEHIND).head(Pace::AtOnce)).await, &file).await;
    assert!(text.contains("So the proxy does not store this page"), "{text}");
    assert!(!text.contains("top-secret"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn init_takes_no_answer_of_its_own_for_one_of_a_silent_origin() {
    let (_folder, file) = place();
    let silent = Origin::bind().await;
    let (output, said) = run(&["init", &silent.url(), "--file", &file]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no answer within 10 s"), "{said}");
    assert!(!std::fs::exists(&file).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn init_without_an_origin_writes_an_example_that_is_accepted() {
    let (_folder, file) = place();
    let (output, said) = run(&["init", "--file", &file]).await;
    assert!(output.status.success(), "{said}");
    let (output, said) = run(&["--config", &file, "--check-config"]).await;
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("url = \"http://127.0.0.1:9000\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn init_overwrites_no_file_and_leaves_none_behind_when_it_fails() {
    let (_folder, file) = place();
    let refuses = Origin::bind().await.refuse();
    let away = format!("http://{}", refuses.local_addr().unwrap());
    let (output, said) = run(&["init", &away, "--file", &file]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&away) && said.contains("cannot be reached"), "{said}");
    assert!(!std::fs::exists(&file).unwrap());

    std::fs::write(&file, "mine").unwrap();
    let origin = origin(PAGE).await;
    let (output, said) = run(&["init", &origin.url(), "--file", &file]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("exists, and is never overwritten"), "{said}");
    assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), origin.hits()), ("mine", 0));

    let nowhere = format!("{file}/no-folder");
    let (output, said) = run(&["init", "--file", &nowhere]).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&nowhere), "{said}");
    for arguments in [&["init", "ftp://a"][..], &["--ttl-ms", "1", "init"], &["begin"]] {
        let (output, said) = run(arguments).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
}

/// Runs a program of the system, with this input. None: it is not there.
fn system(program: &str, arguments: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new(program);
    let command = command.args(arguments).stdin(Stdio::piped());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(process.wait_with_output().unwrap())
}

#[tokio::test]
async fn the_completions_complete_flags_and_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (output, said) = run(&["completions", shell]).await;
        assert!(output.status.success() && output.stderr.is_empty(), "{said}");
        assert!(
            said.contains("stale-if-disconnected-ms") && said.contains("completions"),
            "{said}"
        );
        let lines = match shell {
            "bash" => {
                "COMP_WORDS=(stampede-proxy --stale-if-d); COMP_CWORD=1; \
                 _stampede__proxy stampede-proxy --stale-if-d stampede-proxy; \
                 [[ ${COMPREPLY[*]} == --stale-if-disconnected-ms ]] || exit 1; \
                 COMP_WORDS=(stampede-proxy init --fi); COMP_CWORD=2; \
                 _stampede__proxy stampede-proxy --fi init; [[ ${COMPREPLY[*]} == --file ]]"
            }
            "fish" | "zsh" => "",
            _ => continue,
        };
        match system(shell, &[], &format!("{said}\n{lines}\n")) {
            Some(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            None => println!("not run: no {shell}"),
        }
    }
    assert_eq!(run(&["completions", "tcsh"]).await.0.status.code(), Some(2));
}

#[tokio::test]
async fn the_page_for_man_has_each_flag_and_no_error() {
    let (_, page) = run(&["man"]).await;
    let (_, help) = run(&["--help"]).await;
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let flags: Vec<_> = words.filter(|word| word.starts_with("--") && word.len() > 2).collect();
    assert!(flags.len() > 50, "{flags:?}");
    for flag in flags {
        assert!(page.contains(&flag.replace('-', "\\-")), "{flag}");
    }
    for command in ["stampede\\-proxy init", "\\-\\-origin\\-ca", "stampede\\-proxy completions"] {
        assert!(page.contains(command), "{command}");
    }
    assert!(!page.contains("(1)\n"), "it names no page that is not there: {page}");
    match system("groff", &["-man", "-Tutf8", "-ww", "-z"], &page) {
        Some(output) => assert!(output.status.success() && output.stderr.is_empty(), "{output:?}"),
        None => println!("not run: no groff"),
    }
}
