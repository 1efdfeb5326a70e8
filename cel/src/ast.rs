//! The tree of a parsed expression, with macros expanded. The type checker reads it; an
//! evaluator may.

/// Identifies a node: the index of its position and of its type.
pub type Id = u32;

#[derive(Clone, Debug)]
pub struct Expr {
    pub id: Id,
    pub node: Node,
    /// The depth of the tree below. The parser bounds it, so recursion over the tree is safe.
    pub depth: u32,
}

#[derive(Clone, Debug)]
pub enum Node {
    Literal(Literal),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        /// `has(operand.field)`
        test_only: bool,
    },
    Call {
        function: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Clone, Debug)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Bytes(Vec<u8>),
    String(String),
}

#[derive(Clone, Debug)]
pub struct Element {
    pub value: Expr,
    pub optional: bool,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub id: Id,
    pub name: String,
    pub value: Expr,
    pub optional: bool,
}

/// The expansion of the macros over lists and maps.
#[derive(Clone, Debug)]
pub struct Comprehension {
    pub range: Expr,
    pub var: String,
    pub var2: Option<String>,
    pub accu: String,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Expr {
    /// Makes an expression, and computes its depth from those of its children.
    pub fn new(id: Id, node: Node) -> Expr {
        let mut deepest = 0;
        node.children(&mut |child| deepest = deepest.max(child.depth));
        Expr { id, node, depth: deepest + 1 }
    }

    /// Returns `a.b.c` as one name, if the expression has that form.
    /// Upstream: `containers.ToQualifiedName`.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.node {
            Node::Ident(name) => Some(name.clone()),
            Node::Select { operand, field, test_only: false } => {
                let mut name = operand.qualified_name()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }
}

impl Node {
    /// Calls `visit` for each direct child, from left to right.
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            Node::Literal(_) | Node::Ident(_) => {}
            Node::Select { operand, .. } => visit(operand),
            Node::Call { target, args, .. } => {
                target.as_deref().into_iter().chain(args).for_each(visit);
            }
            Node::List(elements) => elements.iter().for_each(|element| visit(&element.value)),
            Node::Map(entries) => {
                for entry in entries {
                    visit(&entry.key);
                    visit(&entry.value);
                }
            }
            Node::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
            Node::Comprehension(c) => {
                [&c.range, &c.init, &c.condition, &c.step, &c.result].into_iter().for_each(visit);
            }
        }
    }

    /// Calls `visit` with each expression directly below this one.
    pub fn children_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        match self {
            Node::Literal(_) | Node::Ident(_) => {}
            Node::Select { operand, .. } => visit(operand),
            Node::Call { target, args, .. } => {
                target.as_deref_mut().into_iter().chain(args).for_each(visit);
            }
            Node::List(elements) => {
                elements.iter_mut().for_each(|element| visit(&mut element.value));
            }
            Node::Map(entries) => {
                for entry in entries {
                    visit(&mut entry.key);
                    visit(&mut entry.value);
                }
            }
            Node::Struct { fields, .. } => {
                fields.iter_mut().for_each(|field| visit(&mut field.value));
            }
            Node::Comprehension(c) => {
                let Comprehension { range, init, condition, step, result, .. } = &mut **c;
                [range, init, condition, step, result].into_iter().for_each(visit);
            }
        }
    }
}

/// Makes the nodes of one expression and records their positions.
/// Upstream: cel-go's `parser.ExprHelper`.
#[derive(Default)]
pub struct Nodes {
    /// By [`Id`].
    positions: Vec<u32>,
}

impl Nodes {
    /// Makes a node at `offset`, in characters.
    pub fn node(&mut self, offset: u32, node: Node) -> Expr {
        let id = self.id(offset);
        Expr::new(id, node)
    }

    /// Returns a new id, with the position `offset`.
    pub fn id(&mut self, offset: u32) -> Id {
        self.positions.push(offset);
        self.positions.len() as Id - 1
    }

    /// Returns the position of a node, in characters.
    pub fn position(&self, id: Id) -> u32 {
        self.positions[id as usize]
    }

    /// Makes the call of a global function or an operator.
    pub fn call(&mut self, offset: u32, function: &str, args: Vec<Expr>) -> Expr {
        self.node(offset, Node::Call { function: function.to_owned(), target: None, args })
    }

    /// Returns a copy with new ids and the same positions.
    pub fn copy(&mut self, expr: &Expr) -> Expr {
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        copy
    }

    /// Gives the nodes of a copy ids of their own at the same positions.
    fn renumber(&mut self, expr: &mut Expr) {
        expr.id = self.id(self.position(expr.id));
        if let Node::Struct { fields, .. } = &mut expr.node {
            for field in fields {
                field.id = self.id(self.position(field.id));
            }
        }
        expr.node.children_mut(&mut |child| self.renumber(child));
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.positions.len()
    }

    /// Returns the positions, by [`Id`].
    pub fn into_positions(self) -> Vec<u32> {
        self.positions
    }
}
