//! The lengths of functions.

use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::visit::Visit;

/// A function and its lines, without attributes and comments before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// From the signature to the closing brace.
    pub lines: RangeInclusive<usize>,
}

impl Function {
    /// Returns how many lines it has.
    pub fn nr_lines(&self) -> usize {
        self.lines.end() - self.lines.start() + 1
    }
}

/// Returns all functions and methods in the text of a file.
///
/// # Panics
/// When the text is not Rust.
pub fn functions_in(text: &str) -> Vec<Function> {
    let mut found = Found(Vec::new());
    found.visit_file(&syn::parse_file(text).expect("a source file is Rust"));
    found.0
}

struct Found(Vec<Function>);

impl Found {
    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = signature.span().start().line..=block.span().end().line;
        self.0.push(Function { name: signature.ident.to_string(), lines });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.note(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_functions_are_found_with_their_lines() {
        let found =
            functions_in("/// One.\nfn a() {}\n\nimpl B {\n    fn c(&self) {\n        d();\n    }\n}\n");
        let lines = |name: &str| found.iter().find(|function| function.name == name).unwrap().nr_lines();
        assert_eq!((lines("a"), lines("c"), found.len()), (1, 3, 2));
    }
}
