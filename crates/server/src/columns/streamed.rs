//! The topics of columns streams.

use api::columns::streamed_answer::Answer;
use api::columns::streamed_request::Request as Streamed;
use api::columns::{StreamRequest, StreamResponse, StreamedAnswer, StreamedRequest};
use api::common::Refusal;
use node::request::{Outcome, Request, Response};
use state_machine::Failure;
use tablets::TableResponse;

use super::translate::{self, TableCall};
use super::unexpected;
use crate::reads;
use crate::stream::{Numbered, Topic};

pub(crate) enum Rows {}

impl Topic for Rows {
    type RequestMessage = StreamRequest;
    type ItemResponse = StreamedAnswer;
    type ResponseMessage = StreamResponse;

    fn requests(message: StreamRequest) -> Vec<Numbered> {
        let numbered = |StreamedRequest { number, deadline_ms, request }| {
            let request =
                request.map(table_request).ok_or_else(|| Failure::Invalid("unknown kind of request".to_owned()));
            Numbered { number, deadline_ms, request }
        };
        message.requests.into_iter().map(numbered).collect()
    }

    fn answer(number: u64, outcome: Outcome) -> Result<StreamedAnswer, Failure> {
        let answer = match reads::undated(outcome?) {
            (Response::Tablet(TableResponse::Row { cells, rest }), as_of) => {
                Answer::Get(translate::row_that_fits(cells, rest, as_of)?)
            }
            (other, _) => translate::written(&other)
                .map(Answer::Write)
                .or_else(|| translate::session_opened(&other).map(Answer::OpenSession))
                .ok_or_else(|| Failure::Unavailable(unexpected(&other).message().to_owned()))?,
        };
        Ok(StreamedAnswer { number, answer: Some(answer) })
    }

    fn refused(number: u64, refusal: Refusal) -> StreamedAnswer {
        StreamedAnswer { number, answer: Some(Answer::Refusal(refusal)) }
    }

    fn response_message(answers: Vec<StreamedAnswer>) -> StreamResponse {
        StreamResponse { answers }
    }
}

fn table_request(request: Streamed) -> Request {
    let call: TableCall = match request {
        Streamed::Get(request) => request.into(),
        Streamed::Put(request) => request.into(),
        Streamed::Delete(request) => request.into(),
        Streamed::ConditionalPut(request) => request.into(),
        Streamed::ConditionalDelete(request) => request.into(),
        Streamed::Write(request) => request.into(),
        Streamed::DeleteRow(request) => request.into(),
        Streamed::OpenSession(request) => request.into(),
    };
    call.into()
}
