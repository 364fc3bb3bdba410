//! The dependencies between the files of a crate: the imports and paths of its product code,
//! resolved through re-exports. An edge `a -> b` means that `a` names an item defined by `b`. A
//! `pub use` is no edge: it only shows a name under another path. Code not shipped (`#[cfg(test)]`,
//! models) is left out. Method calls are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// A module path inside a crate, without `crate`.
type ModulePath = Vec<String>;

/// The names of one file.
#[derive(Default)]
struct Source {
    /// Relative to the crate's `src`.
    file: String,
    /// Every path named by the file, relative to the crate's root, and whether by a re-export.
    paths: Vec<(Vec<String>, bool)>,
    /// Names bound by imports in this module: the name and its path.
    bound: BTreeMap<String, Vec<String>>,
    /// Modules imported with a glob.
    globs: Vec<Vec<String>>,
    /// Macros, types, functions … defined here.
    defined: BTreeSet<String>,
    /// The types with an inherent `impl` here, by their paths from the crate's root.
    implemented: Vec<Vec<String>>,
}

/// The files of one crate and their edges.
#[derive(Debug)]
pub struct FileGraph {
    /// The files used by each file, by their paths below `src`.
    pub edges: BTreeMap<String, BTreeSet<String>>,
    /// The inherent `impl` blocks of the files: the type, and the place of its declaration.
    pub impls: BTreeSet<InherentImpl>,
}

/// A file with methods of a type: an `impl` without a trait.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InherentImpl {
    /// The name of the type.
    pub type_name: String,
    /// The file that declares it, below `src`.
    pub declared_in: String,
    /// The file with the methods, below `src`.
    pub file: String,
}

impl InherentImpl {
    /// Returns whether the methods stand in the type's own file or, for a type declared in a
    /// `mod.rs`, below its folder.
    pub fn is_at_home(&self) -> bool {
        let folder = self.declared_in.strip_suffix("mod.rs").filter(|folder| !folder.is_empty());
        self.file == self.declared_in || folder.is_some_and(|folder| self.file.starts_with(folder))
    }
}

impl FileGraph {
    /// Reads the crate whose sources are below `src`.
    ///
    /// # Panics
    /// When a file cannot be read or is not Rust.
    pub fn read(src: &Path) -> Self {
        let mut sources = BTreeMap::new();
        let top = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|path| path.exists());
        read_module(src, &top.expect("a crate has a top file"), Vec::new(), &mut sources);
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut impls = BTreeSet::new();
        for source in sources.values() {
            for path in &source.implemented {
                if let (Some(declared_in), Some(name)) = (resolve(&sources, path, 0), path.last()) {
                    let (type_name, file) = (name.clone(), source.file.clone());
                    impls.insert(InherentImpl { type_name, declared_in, file });
                }
            }
            let used = edges.entry(source.file.clone()).or_default();
            for (path, is_reexport) in &source.paths {
                if let Some(target) = resolve(&sources, path, 0).filter(|_| !is_reexport) {
                    used.insert(target);
                }
            }
            used.remove(&source.file);
        }
        Self { edges, impls }
    }

    /// Returns the circles: sets of files with each file using, directly or not, all others of its
    /// set.
    pub fn circles(&self) -> Vec<BTreeSet<String>> {
        let reach: BTreeMap<&String, BTreeSet<&String>> =
            self.edges.keys().map(|file| (file, self.reachable(file))).collect();
        let mut circles: Vec<BTreeSet<String>> = Vec::new();
        for (file, reached) in &reach {
            let circle: BTreeSet<String> =
                reached.iter().filter(|other| reach[**other].contains(file)).map(|f| (*f).clone()).collect();
            if circle.len() > 1 && !circles.contains(&circle) {
                circles.push(circle);
            }
        }
        circles
    }

    fn reachable<'a>(&'a self, from: &'a String) -> BTreeSet<&'a String> {
        let mut reached = BTreeSet::new();
        let mut ahead = vec![from];
        while let Some(file) = ahead.pop() {
            for next in self.edges.get(file).into_iter().flatten() {
                if reached.insert(next) {
                    ahead.push(next);
                }
            }
        }
        reached
    }
}

/// Returns the file that defines the item of a path. `None` for an item outside the crate.
fn resolve(sources: &BTreeMap<ModulePath, Source>, path: &[String], depth: usize) -> Option<String> {
    assert!(depth < 64, "imports of {path:?} lead in a circle of their own");
    let known = (0..=path.len()).rev().find(|&n| sources.contains_key(&path[..n]))?;
    let source = &sources[&path[..known]];
    let Some(name) = path.get(known) else { return Some(source.file.clone()) };
    if source.defined.contains(name) {
        return Some(source.file.clone());
    }
    if let Some(stands_for) = source.bound.get(name) {
        let longer: Vec<String> = stands_for.iter().chain(&path[known + 1..]).cloned().collect();
        return resolve(sources, &longer, depth + 1);
    }
    let through_globs = source.globs.iter().filter(|glob| glob[..] != path[..known]).find_map(|glob| {
        let at = sources.get(glob)?;
        (at.defined.contains(name) || at.bound.contains_key(name)).then(|| {
            let longer: Vec<String> = glob.iter().chain(&path[known..]).cloned().collect();
            resolve(sources, &longer, depth + 1)
        })
    });
    // A macro of this crate is at its root wherever it is defined; other names belong to other
    // crates.
    through_globs.flatten()
}

fn read_module(src: &Path, path: &Path, module: ModulePath, sources: &mut BTreeMap<ModulePath, Source>) {
    let text = fs::read_to_string(path).unwrap();
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = Reader {
        source: Source { file: path.strip_prefix(src).unwrap().display().to_string(), ..Source::default() },
        module: module.clone(),
        children: Vec::new(),
    };
    reader.visit_file(&parsed);
    let Reader { source, children, .. } = reader;
    sources.insert(module.clone(), source);
    for (name, path_attribute) in children {
        let mut child = module.clone();
        child.push(name.clone());
        let path = match path_attribute {
            Some(named) => path.parent().unwrap().join(named),
            None => child_path(path, &name),
        };
        read_module(src, &path, child, sources);
    }
}

fn child_path(parent: &Path, name: &str) -> PathBuf {
    let is_top = ["lib.rs", "main.rs", "mod.rs"].iter().any(|top| parent.ends_with(top));
    let directory = if is_top { parent.parent().unwrap().to_owned() } else { parent.with_extension("") };
    let file = directory.join(format!("{name}.rs"));
    if file.exists() { file } else { directory.join(name).join("mod.rs") }
}

struct Reader {
    source: Source,
    module: ModulePath,
    children: Vec<(String, Option<String>)>,
}

/// Returns whether an item is left out of the program: tests and models.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        let is_for = |word: &str| condition == word || condition.contains(&format!("any ({word}"));
        is_for("test")
            || is_for("loom")
            || condition.starts_with("all (test")
            || condition.contains("any (test")
    })
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

impl Reader {
    fn define(&mut self, name: &syn::Ident) {
        self.source.defined.insert(name.to_string());
    }

    /// Returns the path from the crate's root, if it is written as a path inside the crate.
    fn absolute(&self, written: &[String]) -> Option<Vec<String>> {
        let mut module = self.module.clone();
        match written.first()?.as_str() {
            "crate" => Some(written[1..].to_vec()),
            "self" => Some(module.into_iter().chain(written[1..].iter().cloned()).collect()),
            "super" => {
                let nr_up = written.iter().take_while(|part| *part == "super").count();
                module.truncate(module.len().checked_sub(nr_up)?);
                Some(module.into_iter().chain(written[nr_up..].iter().cloned()).collect())
            }
            // A child module by its bare name.
            first if self.children.iter().any(|(name, _)| name == first) => {
                Some(module.into_iter().chain(written.iter().cloned()).collect())
            }
            _ => None,
        }
    }

    fn note_impl(&mut self, item: &syn::ItemImpl) {
        let syn::Type::Path(of) = &*item.self_ty else { return };
        let written: Vec<String> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let here = || self.module.iter().cloned().chain(written.iter().cloned()).collect();
        let path = self.absolute(&written).unwrap_or_else(here);
        self.source.implemented.push(path);
    }

    fn note_use(&mut self, tree: &UseTree, before: &mut Vec<String>, is_reexport: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_use(&path.tree, before, is_reexport);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.note_use(item, before, is_reexport));
            }
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (name, bound) = match tree {
                    UseTree::Name(name) => (&name.ident, &name.ident),
                    UseTree::Rename(rename) => (&rename.ident, &rename.rename),
                    _ => unreachable!("matched above"),
                };
                let mut written = before.clone();
                let bound = if name == "self" { before.last().cloned() } else { Some(bound.to_string()) };
                if name != "self" {
                    written.push(name.to_string());
                }
                if let Some(path) = self.absolute(&written) {
                    self.source.paths.push((path.clone(), is_reexport));
                    self.source.bound.extend(bound.map(|bound| (bound, path)));
                }
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute(before) {
                    self.source.paths.push((path.clone(), is_reexport));
                    self.source.globs.push(path);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // Children first: a path may begin with the name of one.
        for item in &file.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
                && !is_left_out(&module.attrs)
            {
                let path = module.attrs.iter().find(|attribute| attribute.path().is_ident("path"));
                let path =
                    path.and_then(|attribute| match &attribute.meta.require_name_value().ok()?.value {
                        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
                        _ => None,
                    });
                self.children.push((module.ident.to_string(), path));
            }
        }
        syn::visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        if is_left_out(attributes_of(item)) {
            return;
        }
        match item {
            Item::Const(i) => self.define(&i.ident),
            Item::Enum(i) => self.define(&i.ident),
            Item::Fn(i) => self.define(&i.sig.ident),
            Item::Macro(i) => i.ident.iter().for_each(|name| self.define(name)),
            Item::Static(i) => self.define(&i.ident),
            Item::Struct(i) => self.define(&i.ident),
            Item::Trait(i) => self.define(&i.ident),
            Item::Type(i) => self.define(&i.ident),
            Item::Union(i) => self.define(&i.ident),
            Item::Impl(i) if i.trait_.is_none() => self.note_impl(i),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.note_use(&item.tree, &mut Vec::new(), is_reexport);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let written: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if written.len() > 1
            && let Some(path) = self.absolute(&written)
        {
            self.source.paths.push((path, false));
        }
        syn::visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> FileGraph {
        let src = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = src.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        FileGraph::read(src.path())
    }

    fn circles(files: &[(&str, &str)]) -> Vec<BTreeSet<String>> {
        graph(files).circles()
    }

    #[test]
    fn methods_away_from_their_type_are_found() {
        let found = graph(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a/mod.rs", "mod c; pub struct A; impl A {} impl Clone for A {}"),
            ("a/c.rs", "use super::A; impl A {}"),
            ("b.rs", "use crate::A; impl A {} #[cfg(test)] impl A {} impl Drop for A {} struct B; impl B {}"),
        ]);
        let homes: Vec<(&str, bool)> =
            found.impls.iter().map(|methods| (&*methods.file, methods.is_at_home())).collect();
        assert_eq!(homes, [("a/c.rs", true), ("a/mod.rs", true), ("b.rs", false), ("b.rs", true)]);
    }

    #[test]
    fn a_circle_is_seen_through_a_reexport() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "use crate::A; pub struct B(Box<A>);"),
        ]);
        assert_eq!(found, [BTreeSet::from(["a.rs".to_owned(), "b.rs".to_owned()])]);
    }

    #[test]
    fn a_child_that_uses_its_parents_type_makes_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod c; pub struct A(c::C);"),
            ("a/c.rs", "use super::A; pub struct C(Box<A>);"),
        ]);
        assert_eq!(found, [BTreeSet::from(["a/c.rs".to_owned(), "a/mod.rs".to_owned()])]);
    }

    #[test]
    fn tests_and_reexports_make_no_circle() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
            ("b.rs", "use crate::A; pub struct B(A);"),
        ]);
        assert_eq!(found, Vec::<BTreeSet<String>>::new());
    }
}
