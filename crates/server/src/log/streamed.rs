//! The topics of log streams.

use api::common::Refusal;
use api::log::{
    AppendAnswer, AppendStreamRequest, AppendStreamResponse, ReadAnswer, ReadStreamRequest, ReadStreamResponse,
    StreamedAppend, StreamedRead, append_answer, read_answer,
};
use node::request::{Outcome, Response};
use state_machine::Failure;

use super::translate;
use crate::columns::unexpected;
use crate::stream::{Numbered, Topic};

pub(crate) enum Appends {}

impl Topic for Appends {
    type RequestMessage = AppendStreamRequest;
    type ItemResponse = AppendAnswer;
    type ResponseMessage = AppendStreamResponse;

    fn requests(message: AppendStreamRequest) -> Vec<Numbered> {
        let numbered = |StreamedAppend { number, deadline_ms, append }| {
            let request = append.ok_or_else(unknown_request).and_then(translate::append);
            Numbered { number, deadline_ms, request }
        };
        message.appends.into_iter().map(numbered).collect()
    }

    fn answer(number: u64, outcome: Outcome) -> Result<AppendAnswer, Failure> {
        let response = outcome?;
        let appended = translate::appended(&response).ok_or_else(|| unexpected_response(&response))?;
        Ok(AppendAnswer { number, answer: Some(append_answer::Answer::Append(appended)) })
    }

    fn refused(number: u64, refusal: Refusal) -> AppendAnswer {
        AppendAnswer { number, answer: Some(append_answer::Answer::Refusal(refusal)) }
    }

    fn response_message(answers: Vec<AppendAnswer>) -> AppendStreamResponse {
        AppendStreamResponse { answers }
    }
}

pub(crate) enum Reads {}

impl Topic for Reads {
    type RequestMessage = ReadStreamRequest;
    type ItemResponse = ReadAnswer;
    type ResponseMessage = ReadStreamResponse;

    fn requests(message: ReadStreamRequest) -> Vec<Numbered> {
        let numbered = |StreamedRead { number, deadline_ms, read }| {
            let request = read.map(translate::read).ok_or_else(unknown_request);
            Numbered { number, deadline_ms, request }
        };
        message.reads.into_iter().map(numbered).collect()
    }

    fn answer(number: u64, outcome: Outcome) -> Result<ReadAnswer, Failure> {
        let entries = translate::entries(outcome?).map_err(|response| unexpected_response(&response))?;
        Ok(ReadAnswer { number, answer: Some(read_answer::Answer::Read(entries)) })
    }

    fn refused(number: u64, refusal: Refusal) -> ReadAnswer {
        ReadAnswer { number, answer: Some(read_answer::Answer::Refusal(refusal)) }
    }

    fn response_message(answers: Vec<ReadAnswer>) -> ReadStreamResponse {
        ReadStreamResponse { answers }
    }
}

fn unknown_request() -> Failure {
    Failure::Invalid("unknown kind of request".to_owned())
}

/// The outcome is unknown, because the response has the wrong type.
fn unexpected_response(response: &Response) -> Failure {
    Failure::Unknown(unexpected(response).message().to_owned())
}
