//! Section 4.4.

use super::lab::*;

cases! {
    "R4.4-1" "unsafe and unknown methods invalidate" unsafe_methods_invalidate;
    "R4.4-1" "all variants go" all_variants_go;
    "R4.4-1" "safe methods and errors invalidate nothing" safe_methods_and_errors_do_not;
    "R4.4-2" "no URI of another origin" no_other_origin;
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");

/// GETs answer 200 and are stored; everything else with this.
fn writable(status: u16, fields: Fields<'_>) -> Lab {
    let fields = owned(fields);
    Lab::new(move |call| {
        if call.parts.method == http::Method::GET {
            return say(call, 200, &[FRESH, ("vary", "a")]);
        }
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        say(call, status, &fields)
    })
}

async fn unsafe_methods_invalidate() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "BREW", "post"] {
        for status in [200, 201, 204, 299, 301, 303, 307] {
            let lab = writable(status, &[]);
            lab.get().await;
            lab.send(method, URI, &[]).await;
            assert_eq!(lab.get().await.text(), "2", "{method} {status}");
        }
    }
}

async fn all_variants_go() {
    let lab = writable(200, &[]);
    for value in ["1", "2", "3"] {
        lab.with(&[("a", value)]).await;
    }
    lab.send("POST", URI, &[("a", "2")]).await;
    for (n, value) in ["1", "2", "3"].iter().enumerate() {
        assert_eq!(lab.with(&[("a", value)]).await.text(), (n + 4).to_string());
    }
}

async fn safe_methods_and_errors_do_not() {
    for method in ["OPTIONS", "TRACE"] {
        let lab = writable(200, &[]);
        lab.get().await;
        lab.send(method, URI, &[]).await;
        assert_eq!(lab.get().await.text(), "0", "{method}");
    }
    for status in [400, 404, 409, 500, 503] {
        let lab = writable(status, &[]);
        lab.get().await;
        lab.send("POST", URI, &[]).await;
        assert_eq!(lab.get().await.text(), "0", "{status}");
    }
}

async fn no_other_origin() {
    // Each row: the URI that the response names, and whether it is on our own origin.
    let rows = [
        ("http://a.test/other", true),
        ("/other", true),
        ("other", true),
        ("//a.test/other", true),
        ("HTTP://A.test:80/other", true),
        ("http://b.test/other", false),
        ("https://a.test/other", false),
        ("http://a.test:81/other", false),
        ("//b.test/other", false),
        ("http://a.test@b.test/other", false),
    ];
    for name in ["location", "content-location"] {
        for (named, ours) in rows {
            let lab = writable(201, &[(name, named)]);
            let others = [
                "http://a.test/other",
                "http://b.test/other",
                "https://a.test/other",
                "http://a.test:81/other",
            ];
            for uri in others {
                lab.send("GET", uri, &[]).await;
            }
            lab.send("POST", URI, &[]).await;
            for (n, uri) in others.iter().enumerate() {
                let kept = lab.send("GET", uri, &[]).await.text() == n.to_string();
                assert_eq!(kept, !(ours && n == 0), "{name}: {named}, {uri}");
            }
        }
    }
}
