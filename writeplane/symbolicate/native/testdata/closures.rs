use std::fmt::Debug;

struct Row<T, const N: usize>([T; N]);

trait Sum {
    fn sum(&self) -> i32;
}

impl<T: Debug, const N: usize> Sum for Row<T, N> {
    #[inline(never)]
    fn sum(&self) -> i32 {
        let add = |a: i32| move |b: i32| move |c: i32| std::hint::black_box(a + b + c);
        add(1)(2)(self.0.len() as i32)
    }
}

impl Sum for (u8, &'static dyn Fn(&str) -> bool) {
    #[inline(never)]
    fn sum(&self) -> i32 {
        self.0 as i32 + self.1("x") as i32
    }
}

#[inline(never)]
fn pass<T>(t: T) -> T {
    std::hint::black_box(t)
}

fn sign<const B: bool, const I: i8>() -> i32 {
    std::hint::black_box(B as i32 + I as i32)
}

async fn later(x: i32) -> i32 {
    let inner = async move { x + 1 };
    inner.await
}

fn main() {
    let thread = std::thread::spawn(|| {
        let outer = || {
            let inner = || std::hint::black_box(1);
            inner()
        };
        outer()
    });
    pass::<fn(&str) -> Result<(), Box<dyn std::error::Error + Send + Sync>>>(|_| Ok(()));
    pass::<for<'a> fn(&'a u8, for<'b> fn(&'a u8, &'b u8))>(|_, _| ());
    pass::<(u8,)>((1,));
    let future = later(4);
    println!("{} {}", Row([1u8, 2, 3]).sum(), Row([("a", Some(2.5f64))]).sum());
    println!("{} {} {}", (1, &(|s: &str| s.is_empty()) as &'static dyn Fn(&str) -> bool).sum(), sign::<true, -5>(), std::mem::size_of_val(&future));
    println!("{:?}", thread.join());
}
