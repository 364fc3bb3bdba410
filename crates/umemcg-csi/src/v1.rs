//! The types and services of the Container Storage Interface, generated from `proto/csi.proto`.
#![allow(missing_docs, clippy::all, clippy::missing_errors_doc, rustdoc::all)]

tonic::include_proto!("csi.v1");
