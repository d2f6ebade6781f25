//! The topics of log streams.

use api::columns::Refusal;
use api::log::{
    AppendAnswer, AppendStreamRequest, AppendStreamResponse, ReadAnswer, ReadStreamRequest, ReadStreamResponse,
    StreamedAppend, StreamedRead, append_answer, read_answer,
};
use machine::Failure;
use node::request::{Outcome, Response};

use super::translate;
use crate::columns::unexpected;
use crate::stream::{Numbered, Topic};

/// Appends.
pub(crate) enum Appends {}

impl Topic for Appends {
    type Asked = AppendStreamRequest;
    type Answer = AppendAnswer;
    type Told = AppendStreamResponse;

    fn requests(message: AppendStreamRequest) -> Vec<Numbered> {
        let numbered = |StreamedAppend { number, deadline_ms, append }| {
            let request = append.ok_or_else(asks_for_nothing).and_then(translate::append);
            Numbered { number, deadline_ms, request }
        };
        message.appends.into_iter().map(numbered).collect()
    }

    fn answer(number: u64, outcome: Outcome) -> Result<AppendAnswer, Failure> {
        let response = outcome?;
        let appended = translate::appended(&response).ok_or_else(|| does_not_fit(&response))?;
        Ok(AppendAnswer { number, answer: Some(append_answer::Answer::Append(appended)) })
    }

    fn refused(number: u64, refusal: Refusal) -> AppendAnswer {
        AppendAnswer { number, answer: Some(append_answer::Answer::Refusal(refusal)) }
    }

    fn told(answers: Vec<AppendAnswer>) -> AppendStreamResponse {
        AppendStreamResponse { answers }
    }
}

/// Reads.
pub(crate) enum Reads {}

impl Topic for Reads {
    type Asked = ReadStreamRequest;
    type Answer = ReadAnswer;
    type Told = ReadStreamResponse;

    fn requests(message: ReadStreamRequest) -> Vec<Numbered> {
        let numbered = |StreamedRead { number, deadline_ms, read }| {
            let request = read.map(translate::read).ok_or_else(asks_for_nothing);
            Numbered { number, deadline_ms, request }
        };
        message.reads.into_iter().map(numbered).collect()
    }

    fn answer(number: u64, outcome: Outcome) -> Result<ReadAnswer, Failure> {
        let entries = translate::entries(outcome?).map_err(|response| does_not_fit(&response))?;
        Ok(ReadAnswer { number, answer: Some(read_answer::Answer::Read(entries)) })
    }

    fn refused(number: u64, refusal: Refusal) -> ReadAnswer {
        ReadAnswer { number, answer: Some(read_answer::Answer::Refusal(refusal)) }
    }

    fn told(answers: Vec<ReadAnswer>) -> ReadStreamResponse {
        ReadStreamResponse { answers }
    }
}

fn asks_for_nothing() -> Failure {
    Failure::Invalid("the request asks for nothing that this node knows".to_owned())
}

/// The outcome is unknown, because the response has the wrong type.
fn does_not_fit(response: &Response) -> Failure {
    Failure::Unknown(unexpected(response).message().to_owned())
}
