//! The public crate's face: the list of its items is kept in a file, and every type that a public
//! method takes or returns is among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Attribute, GenericParam, Generics, ImplItem, Item, ReturnType, Signature, UseTree, Visibility};

use crate::root;

/// Items at the root that a reader can still take in.
const NR_ROOT_ITEMS_MAX: usize = 50;
/// The crates whose types the public crate offers.
const CRATES: [&str; 6] =
    ["umemcg", "umemcg-base", "umemcg-arena", "umemcg-group", "umemcg-reclaim", "umemcg-cache"];

fn rust_files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            rust_files_below(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

fn parse(path: &Path) -> syn::File {
    syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap()
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

fn names_of(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => names_of(&path.tree, names),
        UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
        UseTree::Rename(name) => drop(names.insert(name.rename.to_string())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names_of(tree, names)),
        UseTree::Glob(_) => panic!("a glob hides what is public"),
    }
}

/// Returns the public items of the crate by module; the root is `""`.
fn public_items() -> BTreeMap<String, BTreeSet<String>> {
    let source = root().join("crates/umemcg/src");
    let mut modules = BTreeMap::from([(String::new(), source.join("lib.rs"))]);
    for item in parse(&source.join("lib.rs")).items {
        if let Item::Mod(module) = item
            && matches!(module.vis, Visibility::Public(_))
            && !is_hidden(&module.attrs)
        {
            let file = source.join(format!("{}.rs", module.ident));
            modules.insert(module.ident.to_string(), file);
        }
    }
    let items_of = |file: &PathBuf| {
        let mut names = BTreeSet::new();
        for item in parse(file).items {
            match item {
                Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => {
                    names_of(&item.tree, &mut names)
                }
                _ => {}
            }
        }
        names
    };
    modules.iter().map(|(name, file)| (name.clone(), items_of(file))).collect()
}

#[test]
fn the_list_of_public_items_is_current() {
    let items = public_items();
    assert!(items[""].len() <= NR_ROOT_ITEMS_MAX, "{} items at the root", items[""].len());
    let lines: Vec<String> = items
        .iter()
        .flat_map(|(module, names)| {
            let prefix = if module.is_empty() { String::new() } else { format!("{module}::") };
            names.iter().map(move |name| format!("{prefix}{name}\n"))
        })
        .collect();
    let list = root().join("crates/umemcg/public-items.txt");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&list, lines.concat()).unwrap();
    }
    let kept = fs::read_to_string(&list).unwrap_or_default();
    assert_eq!(lines.concat(), kept, "if the change is meant: UPDATE_DOCS=1 cargo test -p umemcg-tidy");
}

/// Collects the types that signatures name.
#[derive(Default)]
struct NamedTypes(BTreeSet<String>);

impl Visit<'_> for NamedTypes {
    fn visit_path(&mut self, path: &syn::Path) {
        let last = path.segments.last().unwrap().ident.to_string();
        if last.starts_with(char::is_uppercase) {
            self.0.insert(last);
        }
        syn::visit::visit_path(self, path);
    }
}

fn type_parameters(generics: &Generics) -> impl Iterator<Item = String> + '_ {
    generics.params.iter().filter_map(|parameter| match parameter {
        GenericParam::Type(parameter) => Some(parameter.ident.to_string()),
        _ => None,
    })
}

fn types_of(signature: &Signature) -> BTreeSet<String> {
    let mut types = NamedTypes::default();
    signature.inputs.iter().for_each(|input| types.visit_fn_arg(input));
    if let ReturnType::Type(_, returned) = &signature.output {
        types.visit_type(returned);
    }
    for parameter in type_parameters(&signature.generics) {
        types.0.remove(&parameter);
    }
    types.0
}

#[test]
fn every_type_in_a_public_signature_can_be_named() {
    const STANDARD: [&str; 34] = [
        "Self",
        "Option",
        "Result",
        "Vec",
        "String",
        "Box",
        "Arc",
        "Weak",
        "Fn",
        "FnMut",
        "FnOnce",
        "Iterator",
        "Into",
        "AsRef",
        "Send",
        "Sync",
        "Sized",
        "Duration",
        "Instant",
        "OsStr",
        "OsString",
        "Path",
        "PathBuf",
        "Future",
        "Range",
        "BorrowedFd",
        "Hash",
        "Eq",
        "Borrow",
        "Any",
        "Clone",
        "BuildHasher",
        "Item",
        "Output",
    ];
    let public: BTreeSet<String> = public_items().into_values().flatten().collect();
    let mut files = Vec::new();
    for name in CRATES {
        rust_files_below(&root().join("crates").join(name).join("src"), &mut files);
    }
    let mut wrong = BTreeSet::new();
    for file in files {
        for item in parse(&file).items {
            let Item::Impl(block) = item else { continue };
            let syn::Type::Path(of) = &*block.self_ty else { continue };
            let of = of.path.segments.last().unwrap().ident.to_string();
            if block.trait_.is_some() || !public.contains(&of) {
                continue;
            }
            let parameters: BTreeSet<String> = type_parameters(&block.generics).collect();
            for method in block.items {
                let ImplItem::Fn(method) = method else { continue };
                if !matches!(method.vis, Visibility::Public(_)) || is_hidden(&method.attrs) {
                    continue;
                }
                for name in types_of(&method.sig) {
                    let is_known = public.contains(&name)
                        || parameters.contains(&name)
                        || STANDARD.contains(&name.as_str());
                    if !is_known {
                        wrong.insert(format!("{of}::{} names {name}", method.sig.ident));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "export them, or hide the methods: {wrong:#?}");
}
