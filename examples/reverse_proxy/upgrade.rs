//! Web sockets: the one upgrade that is passed on, on a connection of its own.

use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::connector::Connector;
use crate::failure::{Kind, OriginError};
use crate::forward::members;
use crate::incoming::ClientBody;
use crate::origin::OriginBody;

/// Asks the origin to switch, and if it does, copies both ways until one of
/// the two closes.
pub(crate) async fn ask(
    connector: &Connector,
    mut request: Request<ClientBody>,
    client: OnUpgrade,
) -> Result<Response<OriginBody>, OriginError> {
    let stream = connector.connect().await.map_err(OriginError::connect)?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(OriginError::of_connection)?;
    // It ends with the response, or becomes the tunnel.
    tokio::spawn(connection.with_upgrades());
    *request.uri_mut() = origin_form(request.uri());
    let response = sender.send_request(request).await.map_err(OriginError::of_connection)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(response, client);
    }
    Ok(response.map(OriginBody::new))
}

fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from)
}

fn switch(
    mut response: Response<Incoming>,
    client: OnUpgrade,
) -> Result<Response<OriginBody>, OriginError> {
    let is_asked_for = |protocol: &[u8]| protocol.eq_ignore_ascii_case(b"websocket");
    if !members(response.headers(), &header::UPGRADE).all(is_asked_for) {
        return Err(OriginError::new(Kind::Malformed));
    }
    let origin = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(origin)) = tokio::join!(client, origin) else { return };
        let (mut client, mut origin) = (TokioIo::new(client), TokioIo::new(origin));
        // Whoever breaks off has ended it for both.
        drop(tokio::io::copy_bidirectional(&mut client, &mut origin).await);
    });
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    Ok(response.map(OriginBody::new))
}
