//! Sets a service and follows what happens to it: `cargo run --package weir-client --example follow SOCKET`.

use std::io::Write;
use weir_client::{Client, ClientError, Options, RefusalReason};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("the path of weir's control socket is missing")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(follow(&Client::unix(socket)))?)
}

async fn follow(weir: &Client) -> Result<(), ClientError> {
    let web = serde_json::json!({
        "name": "web", "port": "p0", "fail": "reject", "back_ends": [],
        "service": { "vip": "10.0.0.80", "protocol": "tcp", "port": 80 },
    });
    match weir.put("web", &web, &Options { dry_run: true, ..Options::default() }).await {
        Ok(changes) => say(&format!("would create {:?}, update {:?}", changes.created, changes.updated)),
        Err(ClientError::Refused { reason: RefusalReason::Conflict, why }) => {
            say(&format!("not ours: {why}"))
        }
        Err(other) => return Err(other),
    }
    weir.put("web", &web, &Options::default()).await?;
    let mut last = None;
    loop {
        let mut watch = weir.watch(last).await?;
        while let Some(event) = watch.next().await? {
            last = Some(event.id);
            if event.event == "reread" {
                say(&format!("{} services", weir.services().await?.services.len()));
            }
            say(&format!("{} {}", event.event, event.data));
        }
    }
}

fn say(text: &str) {
    // The reader may be gone.
    let _ = writeln!(std::io::stdout(), "{text}");
}
